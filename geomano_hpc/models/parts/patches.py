"""Patches of a grid: cutting, padding what does not divide, putting back.

Axes: B batch, H x W grid points, h x w patches, P points of a patch, D anything behind.
"""

import torch
import torch.nn.functional as F

Sides = tuple[int, int]  # points of a patch along H and along W


def patch_grid(height: int, width: int, sides: Sides) -> tuple[int, int]:
    return -(-height // sides[0]), -(-width // sides[1])


def to_patches(y_BHWD: torch.Tensor, sides: Sides) -> torch.Tensor:
    """Cut into patches, [B, h, w, P, D]; a grid that does not divide repeats its last line."""
    _, height, width, _ = y_BHWD.shape
    bottom, right = -height % sides[0], -width % sides[1]
    if bottom or right:
        y_BHWD = F.pad(y_BHWD.movedim(-1, 1), (0, right, 0, bottom), mode="replicate").movedim(1, -1)
    rows = y_BHWD.unflatten(1, (-1, sides[0])).unflatten(3, (-1, sides[1]))  # B, h, p, w, p, D
    return rows.transpose(2, 3).flatten(3, 4)


def from_patches(y_BhwPD: torch.Tensor, sides: Sides, height: int, width: int) -> torch.Tensor:
    """The grid that `to_patches` cut, without the lines that it repeated."""
    rows = y_BhwPD.unflatten(3, sides).transpose(2, 3)  # B, h, p, w, p, D
    return rows.flatten(3, 4).flatten(1, 2)[:, :height, :width]


def resampled(y_BhwPD: torch.Tensor, sides: Sides, here: Sides) -> torch.Tensor:
    """Values at the points of patches, at other points of the same patches: linear between points, constant beyond."""
    rows, columns = (_between(many, few).to(y_BhwPD) for many, few in zip(here, sides, strict=True))
    by_side = y_BhwPD.unflatten(-2, sides)
    return torch.einsum("pr,qc,...rcd->...pqd", rows, columns, by_side).flatten(-3, -2)


def _between(here: int, points: int) -> torch.Tensor:
    """[here, points]: the shares of the points in each of `here` points that stand for the same length. Both begin at
    one place."""
    at = (torch.arange(here) * points / here).clamp(max=points - 1)
    return (1 - (at[:, None] - torch.arange(points)).abs()).clamp(min=0)
