"""Positional encoding of patches. The paper has it for 1D and 3D domains and leaves it out for 2D ones.

Axes: B batch, h x w patches, D embedding.
"""

import math

import torch
from torch import nn


class PositionalEncoding(nn.Module):
    """Sines and cosines of the coordinates of the patch centres in the unit square, projected to the embedding.

    Coordinates are relative to the domain, so no parameter depends on the size of the grid. (The form is ours: the
    paper says only that positional encodings are embedded into the patches.)
    """

    frequencies: torch.Tensor

    def __init__(self, embedding: int, n_frequencies: int = 8) -> None:
        super().__init__()
        self.register_buffer("frequencies", math.pi * 2.0 ** torch.arange(n_frequencies) / 2, persistent=False)
        self.project = nn.Linear(4 * n_frequencies, embedding)

    def forward(self, z_BhwD: torch.Tensor) -> torch.Tensor:
        _, h, w, _ = z_BhwD.shape
        along = [(torch.arange(n, device=z_BhwD.device) + 0.5) / n for n in (h, w)]
        centres = torch.meshgrid(*along, indexing="ij")
        angles = torch.stack(centres, dim=-1)[..., None].to(self.frequencies.dtype) * self.frequencies
        features = torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return self.project(features)
