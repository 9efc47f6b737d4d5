"""Depthwise convolutions whose taps keep their distance in the domain, whatever the grid.

Axes: B batch, h x w grid, E channels, p x q taps.
"""

import math

import torch
from torch import nn

from geomano_hpc.kernels import depthwise_conv, gelu
from geomano_hpc.models.parts.coarser import convolution_of_every_nth
from geomano_hpc.models.parts.sampling import Pair
from geomano_hpc.models.parts.taps import on_spacing


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
        if all(one >= 1 and one == round(one) for one in spacing):
            every = (round(spacing[0]), round(spacing[1]))
            u_BhwE = convolution_of_every_nth(z_BhwE, weight, bias, every, wrap, self.backend)
            return self._activated(u_BhwE)
        # Else the points between are filled in first on a coarser grid, and those beyond a wall on a finer one.
        between = [max(1, math.ceil(one - 1e-9)) for one in spacing]
        now = (spacing[0] / between[0], spacing[1] / between[1])
        beyond = [0 if wrap[axis] else math.ceil(1 / now[axis] - 1e-9) - 1 for axis in (0, 1)]
        for axis in (0, 1):
            z_BhwE = filled_in(z_BhwE, axis + 1, between[axis], wrap[axis])
            z_BhwE = with_ramps(z_BhwE, axis + 1, beyond[axis], now[axis])
        found = depthwise_conv(z_BhwE, on_spacing(weight, now), bias, self.activation, wrap, self.backend)
        rows, columns = (slice(n, found.shape[axis + 1] - n, between[axis]) for axis, n in enumerate(beyond))
        return found[:, rows, columns]

    def _activated(self, u_BhwE: torch.Tensor) -> torch.Tensor:
        if self.activation == "none":
            return u_BhwE
        return nn.functional.silu(u_BhwE) if self.activation == "silu" else gelu(u_BhwE, self.backend)


def filled_in(z_BhwE: torch.Tensor, axis: int, times: int, is_ring: bool) -> torch.Tensor:
    """With so many points where there was one, linear between two; on a ring between the last and the first, too."""
    if times == 1:
        return z_BhwE
    after = z_BhwE.roll(-1, axis)
    steps = [torch.lerp(z_BhwE, after, number / times) for number in range(times)]
    filled = torch.stack(steps, dim=axis + 1).flatten(axis, axis + 1)
    return filled if is_ring else filled.narrow(axis, 0, filled.shape[axis] - times + 1)


def with_ramps(z_BhwE: torch.Tensor, axis: int, points: int, spacing: float) -> torch.Tensor:
    """With so many points more beyond both walls, falling to the zero that the training's grid has one point beyond."""
    if points == 0:
        return z_BhwE
    falling = (1 - spacing * torch.arange(1, points + 1)).to(z_BhwE).view(-1, *[1] * (3 - axis))
    first, last = z_BhwE.narrow(axis, 0, 1), z_BhwE.narrow(axis, z_BhwE.shape[axis] - 1, 1)
    return torch.cat([first * falling.flip(0), z_BhwE, last * falling], dim=axis)
