"""Positional encoding of patches. The paper has it for 1D and 3D domains and leaves it out for 2D ones.

Axes: B batch, h x w patches, D embedding.
"""

import math

import torch
from torch import nn

from geomano_hpc.models.parts.sampling import AS_TRAINED, Sampling


class PositionalEncoding(nn.Module):
    """Sines and cosines of the coordinates of the patch centres in the unit square, projected to the embedding.

    Coordinates are relative to the domain of the training, so no parameter depends on the size of the grid, and a point
    has the same encoding on every grid. Along an axis that is periodic the waves have 1, 2, 3, ... whole periods. (The
    form is ours: the paper says only that positional encodings are embedded into the patches.)
    """

    frequencies: torch.Tensor
    whole_periods: torch.Tensor

    def __init__(self, embedding: int, n_frequencies: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", math.pi * 2.0 ** torch.arange(n_frequencies) / 2, persistent=False)
        whole = 2 * math.pi * torch.arange(1.0, n_frequencies + 1)
        self.register_buffer("whole_periods", whole, persistent=False)
        self.project = nn.Linear(4 * n_frequencies, embedding)

    def forward(self, z_BhwD: torch.Tensor, sampling: Sampling = AS_TRAINED) -> torch.Tensor:
        _, h, w, _ = z_BhwD.shape
        along = [self._coordinates(axis, n, z_BhwD.device, sampling) for axis, n in enumerate((h, w))]
        centres = torch.stack(torch.meshgrid(*along, indexing="ij"), dim=-1)[..., None]
        waves = torch.stack([self.whole_periods if ring else self.frequencies for ring in sampling.periodic])
        angles = centres.to(waves.dtype) * waves
        features = torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return self.project(features)

    @staticmethod
    def _coordinates(axis: int, n: int, device: torch.device, sampling: Sampling) -> torch.Tensor:
        """(i + 1/2) / n of the training's grid, at the points of this one."""
        number = torch.arange(n, device=device)
        points = n if sampling.points is None else sampling.points[axis]
        spacing, start = sampling.spacing[axis], sampling.start[axis]
        if (spacing, start) != (1.0, 0.0):
            number = start + spacing * number
        return (number + 0.5) / points
