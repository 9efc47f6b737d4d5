"""Values carried along: each point takes them from another place, and says from which. (Ours.)

What flows is moved, u(t + dt, x) = u(t, x - dt v(x)), over many points in one step. A product of velocity and gradient
says so for small steps only, and a convolution for a velocity that is the same everywhere.

Axes: B batch, h x w grid, D embedding, M heads, c = D / M channels of a head; b = B M.
"""

import torch
import torch.nn.functional as F
from torch import nn

from geomano_hpc.models.parts.sampling import AS_TRAINED, Sampling

UNIT = 4.0  # points of the training's grid that a displacement of one is
_FIRST = 0.01  # deviation of the weights that displacements begin with: all but nothing is moved before training


class Transport(nn.Module):
    """Linear of V(x + d(x)) - V(x): by how much values change on the way. V and d are Linear of the features, and d is
    a displacement for each head.

    Between points V is linear; beyond a wall it is that of the wall, and a ring goes on at its other end.
    """

    def __init__(self, D: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.values = nn.Linear(D, D)
        self.displacement = nn.Linear(D, 2 * heads)
        self.out_projection = nn.Linear(D, D)
        nn.init.normal_(self.displacement.weight, std=_FIRST)
        nn.init.zeros_(self.displacement.bias)

    def forward(self, z_BhwD: torch.Tensor, where: Sampling = AS_TRAINED) -> torch.Tensor:
        v_BhwD = self.values(z_BhwD)
        unit = z_BhwD.new_tensor([UNIT / spacing for spacing in where.spacing])
        d_BhwM2 = self.displacement(z_BhwD).unflatten(-1, (self.heads, 2)) * unit
        v_bchw = v_BhwD.unflatten(-1, (self.heads, -1)).permute(0, 3, 4, 1, 2).flatten(0, 1)
        there_bchw = moved(v_bchw, d_BhwM2.movedim(3, 1).flatten(0, 1), where.periodic)
        there_BhwD = there_bchw.unflatten(0, (-1, self.heads)).flatten(1, 2).movedim(1, -1)
        return self.out_projection(there_BhwD - v_BhwD)


def moved(v_bchw: torch.Tensor, d_bhw2: torch.Tensor, rings: tuple[bool, bool]) -> torch.Tensor:
    """v at x + d(x), with d in points. Places are in float32 at least: lower precisions cannot tell points apart."""
    dtype, exact = v_bchw.dtype, torch.promote_types(v_bchw.dtype, torch.float32)
    v_bchw, d_bhw2 = v_bchw.to(exact), d_bhw2.to(exact)
    places = []
    for axis in (0, 1):
        n = d_bhw2.shape[1 + axis]
        here = torch.arange(n, device=d_bhw2.device, dtype=d_bhw2.dtype)
        at = d_bhw2[..., axis] + (here[:, None] if axis == 0 else here)
        if rings[axis]:
            at = at - n * (at.detach() / n).floor()
            v_bchw = torch.cat([v_bchw, v_bchw.narrow(2 + axis, 0, 1)], dim=2 + axis)
        places.append(2 * at / max(v_bchw.shape[2 + axis] - 1, 1) - 1)
    grid_bhw2 = torch.stack(places[::-1], dim=-1)  # along W first, as torch has it
    return F.grid_sample(v_bchw, grid_bhw2, padding_mode="border", align_corners=True).to(dtype)
