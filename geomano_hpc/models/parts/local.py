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

    def forward(  # type: ignore[override]
        self, z_BhwE: torch.Tensor, spacing: Pair = (1.0, 1.0), wrap: tuple[bool, bool] = (False, False)
    ) -> torch.Tensor:
        weight = self.weight if spacing == (1.0, 1.0) else on_spacing(self.weight, spacing)
        return depthwise_conv(z_BhwE, weight, self.bias, self.activation, wrap, self.backend)


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
