"""Depthwise convolutions whose taps keep their distance in the domain, whatever the grid.

Axes: B batch, h x w grid, E channels, p x q taps.
"""

import math

import torch
from torch import nn

from geomano_hpc.kernels import depthwise_conv
from geomano_hpc.models.parts.sampling import Pair


class DepthwiseConv(nn.Conv2d):
    """activation(convolution of each channel + bias), [B, h, w, E] -> [B, h, w, E]; zeros around the grid, or the other
    end of an axis that is a ring."""

    def __init__(self, E: int, size: int, activation: str = "silu", backend: str = "auto") -> None:
        super().__init__(E, E, size, padding=size // 2, groups=E)
        self.activation, self.backend = activation, backend

    def forward(
        self, z_BhwE: torch.Tensor, spacing: Pair = (1.0, 1.0), wrap: tuple[bool, bool] = (False, False)
    ) -> torch.Tensor:
        weight, bias = self.weight, self.bias
        assert bias is not None
        if spacing == (1.0, 1.0):
            return depthwise_conv(z_BhwE, weight, bias, self.activation, wrap, self.backend)
        # On a coarser grid the points between are filled in first, so that a tap beyond a wall is zero as it was.
        between = [max(1, math.ceil(one - 1e-9)) for one in spacing]
        for axis in (1, 2):
            z_BhwE = filled_in(z_BhwE, axis, between[axis - 1], wrap[axis - 1])
        weight = on_spacing(weight, (spacing[0] / between[0], spacing[1] / between[1]))
        found = depthwise_conv(z_BhwE, weight, bias, self.activation, wrap, self.backend)
        return found[:, :: between[0], :: between[1]]


def on_spacing(weight_E1pq: torch.Tensor, spacing: Pair) -> torch.Tensor:
    """The taps on points that are `spacing` apart, where they were 1 apart before: a tap between points is shared by
    its neighbours, so taps lie farther apart on a finer grid and fall together on a coarser one. Their sum stays."""
    down, along = (
        _shares(size, one).to(weight_E1pq) for size, one in zip(weight_E1pq.shape[-2:], spacing, strict=True)
    )
    return torch.einsum("ip,jq,eopq->eoij", down, along, weight_E1pq)


def _shares(size: int, spacing: float) -> torch.Tensor:
    """[points, taps]: the share of each tap that falls on each point."""
    reach = size // 2
    at = torch.arange(-reach, reach + 1) / spacing
    farthest = math.ceil(reach / spacing - 1e-9)
    return (1 - (torch.arange(-farthest, farthest + 1)[:, None] - at).abs()).clamp(min=0)


def filled_in(z_BhwE: torch.Tensor, axis: int, times: int, is_ring: bool) -> torch.Tensor:
    """With so many points where there was one, linear between two; on a ring between the last and the first, too."""
    if times == 1:
        return z_BhwE
    after = z_BhwE.roll(-1, axis)
    steps = [torch.lerp(z_BhwE, after, number / times) for number in range(times)]
    filled = torch.stack(steps, dim=axis + 1).flatten(axis, axis + 1)
    return filled if is_ring else filled.narrow(axis, 0, filled.shape[axis] - times + 1)
