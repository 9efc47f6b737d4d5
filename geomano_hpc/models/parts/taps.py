"""Taps of a convolution that keep their distance in the domain, on points that lie closer together or farther apart.

Axes: E channels, p x q taps.
"""

import math

import torch

from geomano_hpc.models.parts.sampling import Pair


def on_spacing(weight_E1pq: torch.Tensor, spacing: Pair) -> torch.Tensor:
    """The taps on points that are `spacing` apart, where they were 1 apart before: a tap between points is shared by
    its neighbours, so taps lie farther apart on a finer grid and fall together on a coarser one. Their sum stays."""
    down, along = (shares(size, one).to(weight_E1pq) for size, one in zip(weight_E1pq.shape[-2:], spacing, strict=True))
    return torch.einsum("ip,jq,eopq->eoij", down, along, weight_E1pq)


def shares(size: int, spacing: float) -> torch.Tensor:
    """[points, taps]: the share of each tap that falls on each point."""
    reach = size // 2
    at = torch.arange(-reach, reach + 1) / spacing
    farthest = math.ceil(reach / spacing - 1e-9)
    return (1 - (torch.arange(-farthest, farthest + 1)[:, None] - at).abs()).clamp(min=0)
