"""The GeoMamba kernel with its scan left out: the ablation that says what the scan is worth. (Ours.)

Axes: B batch, h x w patch grid, D embedding, E = expand * D channels.
"""

from collections.abc import Callable

import torch
from torch import nn

from geomano_hpc.models.parts.local import DepthwiseConv
from geomano_hpc.models.parts.sampling import AS_TRAINED, Sampling
from geomano_hpc.models.parts.spectral import SpectralBranch
from geomano_hpc.models.parts.stack import keeping_inputs
from geomano_hpc.models.parts.way_out import WayOut, WithWayOut


class KernelWithoutScan(WithWayOut):
    """Algorithm 1 with Y = X in the place of lines 3 and 4: convolution and gate stay, and a spectral branch."""

    def __init__(
        self,
        embedding: int,
        *,
        expand: int,
        conv_size: int,
        spectral_modes: int,
        way_out: WayOut,
        backend: str,
        activation: str = "silu",
    ) -> None:
        super().__init__(way_out, backend)
        E = expand * embedding
        self.in_projection = nn.Linear(embedding, E)
        self.convolution = DepthwiseConv(E, conv_size, activation=activation, backend=backend)
        self.add_way_out(E, embedding)
        self.spectral = SpectralBranch(E, spectral_modes) if spectral_modes else None

    def forward(
        self,
        z_BhwD: torch.Tensor,
        pre_norm: Callable[[torch.Tensor], torch.Tensor] | None = None,
        where: Sampling = AS_TRAINED,
    ) -> torch.Tensor:
        """Like that of GeoMambaKernel."""
        z_BhwE = keeping_inputs(lambda z: self.in_projection(z if pre_norm is None else pre_norm(z)), z_BhwD)
        y_BhwE = keeping_inputs(lambda z: self.convolution(z, where.spacing, where.periodic), z_BhwE)
        if self.spectral is not None:
            y_BhwE = y_BhwE + self.spectral(y_BhwE)
        return self.out(y_BhwE, z_BhwE)
