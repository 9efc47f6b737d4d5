"""From the merged scans back to the embedding: the last two lines of Algorithm 1, and two ways of ours.

Axes: B batch, h x w patch grid, D embedding, E channels of the scan.
"""

from typing import Literal

import torch
from torch import nn

from geomano_hpc.kernels import gate, norm_gate
from geomano_hpc.models.parts.stack import keeping_inputs

WayOut = Literal["gated", "product", "linear"]


class WithWayOut(nn.Module):
    """A kernel that ends with Linear of

    gated: SiLU(LayerNorm(y)) * SiLU(z), as in the paper; product: y * SiLU(z), as in Mamba, so that an integral may be
    multiplied with what is there; linear: y, so that the kernel may be an integral.
    """

    def __init__(self, way_out: WayOut, backend: str) -> None:
        super().__init__()
        self.way_out, self.backend = way_out, backend

    def add_way_out(self, E: int, D: int) -> None:
        """Its parameters, after those of the kernel: checkpoints know them by their order."""
        self.norm = nn.LayerNorm(E) if self.way_out == "gated" else None
        self.out_projection = nn.Linear(E, D)

    def out(self, y_BhwE: torch.Tensor, z_BhwE: torch.Tensor) -> torch.Tensor:
        """What is gated is computed again in the backward, like what else costs little."""
        if self.way_out == "linear":
            return self.out_projection(y_BhwE)
        return keeping_inputs(self._gated, y_BhwE, z_BhwE)

    def _gated(self, y_BhwE: torch.Tensor, z_BhwE: torch.Tensor) -> torch.Tensor:
        if self.norm is None:
            return self.out_projection(gate(y_BhwE, z_BhwE, self.backend))
        gated = norm_gate(y_BhwE, z_BhwE, self.norm.weight, self.norm.bias, self.norm.eps, self.backend)
        return self.out_projection(gated)
