"""A depthwise convolution on every n-th point of the training's grid, without filling in the points between.

The field is linear between its points, so a tap between them is shared by both: a stencil on the points there are. Only
at a wall is that not all. One point of the training's grid beyond its last one the field is zero, and the stencil lets
it fall to a zero n points beyond. What its taps meet on the way is taken off: it concerns a few lines of points along
the wall, and depends on the field at the wall alone. Where two walls meet it is taken off twice, and once added.

Axes: B batch, h x w grid, E channels, p x q taps, r and c lines of points along the walls: rows and columns.
"""

import functools

import torch

from geomano_hpc.kernels import depthwise_conv
from geomano_hpc.models.parts.taps import shares


def convolution_of_every_nth(
    z_BhwE: torch.Tensor,
    weight_E1pq: torch.Tensor,
    bias_E: torch.Tensor,
    every: tuple[int, int],
    wrap: tuple[bool, bool],
    backend: str,
) -> torch.Tensor:
    """What the training's grid has at these points, before an activation."""
    sizes, points = weight_E1pq.shape[2:], z_BhwE.shape[1:3]
    kind = (weight_E1pq.dtype, weight_E1pq.device)
    down, along = (_axis(points[a], sizes[a], every[a], wrap[a], *kind) for a in (0, 1))
    found_Epq = torch.einsum("ip,jq,eopq->eij", down.taps, along.taps, weight_E1pq)
    p, q = down.shared, along.shared
    u_BhwE = depthwise_conv(z_BhwE, found_Epq[:, None, :p, :q], bias_E, "none", wrap, backend)
    if down.lines:
        rows_BrwE = z_BhwE.index_select(1, down.walls)
        met = _of_lines(rows_BrwE.transpose(1, 2), found_Epq[:, p:, :q], wrap[1], backend).transpose(1, 2)
        if along.lines:
            corners_rcE = found_Epq[:, p:, q:].movedim(0, -1)
            met = met.index_add(2, along.at, -(rows_BrwE.index_select(2, along.walls) * corners_rcE).to(met))
        u_BhwE = u_BhwE.index_add(1, down.at, -met)
    if along.lines:
        met = _of_lines(z_BhwE.index_select(2, along.walls), found_Epq[:, :p, q:].transpose(1, 2), wrap[0], backend)
        u_BhwE = u_BhwE.index_add(2, along.at, -met)
    return u_BhwE


def _of_lines(x_BnlE: torch.Tensor, taps_Elt: torch.Tensor, is_ring: bool, backend: str) -> torch.Tensor:
    """Each line l is convolved along its n points with t taps of its own."""
    of_channels = x_BnlE.flatten(2)[:, None]
    weight = taps_Elt.transpose(0, 1).flatten(0, 1)[:, None, None]
    no_bias = weight.new_zeros(len(weight))
    return depthwise_conv(of_channels, weight, no_bias, "none", (False, is_ring), backend).view(x_BnlE.shape)


class _Axis:
    """What an axis does to taps: first those that the points share, then a line of points along a wall at a time."""

    def __init__(self, points: int, size: int, every: int, is_ring: bool, like: torch.Tensor) -> None:
        shared, reach = shares(size, every), size // 2
        met, at, walls = [], [], []
        for line in range(0 if is_ring or every == 1 else min(points, -(-reach // every))):
            beyond = torch.zeros(size)
            for steps in range(1, min(every, reach - every * line + 1)):
                beyond[reach - every * line - steps] = 1 - steps / every
            met += [beyond, beyond.flip(0)]
            at += [line, points - 1 - line]
            walls += [0, points - 1]
        self.shared, self.lines = len(shared), len(met)
        self.taps = torch.cat([shared, *(one[None] for one in met)]).to(like)
        self.at, self.walls = (torch.tensor(one, dtype=torch.long, device=like.device) for one in (at, walls))


@functools.lru_cache(maxsize=64)
def _axis(points: int, size: int, every: int, is_ring: bool, dtype: torch.dtype, device: torch.device) -> _Axis:
    return _Axis(points, size, every, is_ring, torch.empty(0, dtype=dtype, device=device))
