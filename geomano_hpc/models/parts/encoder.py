"""Geometry-aware encoder and decoder (section "Geometry-Aware Encoder and Decoder").

    encoder  Y = Linear(X),          W = Softmax(Linear(Y)),  Z = LayerNorm(W^T Y)
    decoder  W = Softmax(Linear(Z)), Y = W^T Z,               X = Linear(LayerNorm(Y))

(Our reading of the decoder: a LayerNorm last, as printed, would return a constant for one output channel.) The
variants differ in where W may look, which is a mixing of its own:

    pointwise  a patch is a point: W is one and is left out
    local      W lives inside each patch, a softmax over its points for each feature; ours, it keeps the geometry
    global     the paper's literal W in R^{P x L}: every patch mixes the whole domain

Axes: B batch, H x W grid points (P in all), h x w patches (L in all), p points of a patch, D embedding, C channels.
"""

from typing import Literal

import torch
from torch import nn

from geomano_hpc.errors import ConfigError
from geomano_hpc.models.parts.patches import Sides, from_patches, patch_grid, resampled, to_patches
from geomano_hpc.models.parts.position import PositionalEncoding
from geomano_hpc.models.parts.sampling import AS_TRAINED, Sampling

Grid = tuple[int, int]
Variant = Literal["pointwise", "local", "global"]


class Encoder(nn.Module):
    """Lifting, mixing into patches, positional encoding where asked for, LayerNorm."""

    def __init__(
        self,
        in_channels: int,
        D: int,
        variant: Variant,
        sides: Sides,
        grid: Grid | None,
        frequencies: int,
        is_linear: bool = False,
    ) -> None:
        """`frequencies` of the positional encoding; 0: there is none. Ours, `is_linear`: a linear lift and no norm."""
        super().__init__()
        self.sides = sides
        self.lift: nn.Module = nn.Linear(in_channels, D)
        if not is_linear:
            self.lift = nn.Sequential(self.lift, nn.GELU(), nn.Linear(D, D))
        self.mix: nn.Module | None = None
        if variant == "local":
            self.mix = LocalMix(D, sides)
        elif variant == "global":
            self.mix = GlobalMix(D, sides, _known(grid))
        self.position = PositionalEncoding(D, frequencies) if frequencies else None
        self.norm = nn.Identity() if is_linear else nn.LayerNorm(D)

    def forward(self, x_BHWC: torch.Tensor, sampling: Sampling = AS_TRAINED) -> torch.Tensor:
        z_BhwD = self.lift(x_BHWC)
        if self.mix is not None:
            z_BhwD = self.mix(z_BhwD, sampling)
        if self.position is not None:
            z_BhwD = z_BhwD + self.position(z_BhwD, sampling.of_patches(self.sides))
        return self.norm(z_BhwD)


class Decoder(nn.Module):
    """Patches back to points, LayerNorm, projection."""

    def __init__(
        self, D: int, out_channels: int, variant: Variant, sides: Sides, grid: Grid | None, is_linear: bool = False
    ) -> None:
        """Ours, `is_linear`: no norm."""
        super().__init__()
        self.spread: nn.Module | None = None
        if variant == "local":
            self.spread = LocalSpread(D, sides)
        elif variant == "global":
            self.spread = GlobalSpread(D, _known(grid))
        self.norm = nn.Identity() if is_linear else nn.LayerNorm(D)
        self.project = nn.Linear(D, out_channels)

    def forward(self, z_BhwD: torch.Tensor, height: int, width: int, sampling: Sampling = AS_TRAINED) -> torch.Tensor:
        y_BHWD = z_BhwD if self.spread is None else self.spread(z_BhwD, height, width, sampling)
        return self.project(self.norm(y_BHWD))


class LocalMix(nn.Module):
    """Z = W^T Y with W a softmax over the points of each patch, for each feature."""

    def __init__(self, D: int, sides: Sides) -> None:
        super().__init__()
        self.sides = sides
        self.weights = nn.Linear(D, D)

    def forward(self, y_BHWD: torch.Tensor, sampling: Sampling = AS_TRAINED) -> torch.Tensor:
        y_BhwpD = to_patches(y_BHWD, sampling.sides(self.sides))
        return (self.weights(y_BhwpD).softmax(dim=-2) * y_BhwpD).sum(dim=-2)


class LocalSpread(nn.Module):
    """Y = W^T Z with W a softmax over the points of each patch, for each feature.

    Where a patch has more points than in the training, or fewer, what the softmax is taken of is interpolated, and the
    mean of W over the patch stays what it was.
    """

    def __init__(self, D: int, sides: Sides) -> None:
        super().__init__()
        self.sides = sides
        self.weights = nn.Linear(D, sides[0] * sides[1] * D)

    def forward(self, z_BhwD: torch.Tensor, height: int, width: int, sampling: Sampling = AS_TRAINED) -> torch.Tensor:
        points = self.sides[0] * self.sides[1]
        w_BhwpD, sides = self.weights(z_BhwD).unflatten(-1, (points, -1)), sampling.sides(self.sides)
        if sides != self.sides:
            w_BhwpD = resampled(w_BhwpD, self.sides, sides)
        w_BhwpD = w_BhwpD.softmax(dim=-2)
        if sides != self.sides:
            w_BhwpD = w_BhwpD * (sides[0] * sides[1] / points)
        return from_patches(w_BhwpD * z_BhwD.unsqueeze(-2), sides, height, width)


class GlobalMix(nn.Module):
    """Z = W^T Y with W in R^{P x L}, a softmax over all points: a patch is a weighted mean of the domain."""

    def __init__(self, D: int, sides: Sides, grid: Grid) -> None:
        super().__init__()
        self.grid = grid
        self.patches = patch_grid(*grid, sides)
        self.weights = nn.Linear(D, self.patches[0] * self.patches[1])

    def forward(self, y_BHWD: torch.Tensor, _sampling: Sampling = AS_TRAINED) -> torch.Tensor:
        _check_grid(self.grid, tuple(y_BHWD.shape[1:3]))
        y_BPD = y_BHWD.flatten(1, 2)
        w_BPL = self.weights(y_BPD).softmax(dim=1)
        return (w_BPL.mT @ y_BPD).unflatten(1, self.patches)


class GlobalSpread(nn.Module):
    """Y = W^T Z with W in R^{L x P}, a softmax over all patches: a point is a weighted mean of the patches."""

    def __init__(self, D: int, grid: Grid) -> None:
        super().__init__()
        self.grid = grid
        self.weights = nn.Linear(D, grid[0] * grid[1])

    def forward(self, z_BhwD: torch.Tensor, height: int, width: int, _sampling: Sampling = AS_TRAINED) -> torch.Tensor:
        _check_grid(self.grid, (height, width))
        z_BLD = z_BhwD.flatten(1, 2)
        w_BLP = self.weights(z_BLD).softmax(dim=1)
        return (w_BLP.mT @ z_BLD).unflatten(1, (height, width))


def _known(grid: Grid | None) -> Grid:
    if grid is None:
        raise ConfigError("encoder global ties its weights to one grid: build the model with grid=(H, W)")
    return grid


def _check_grid(expected: Grid, found: tuple[int, ...]) -> None:
    if found != expected:
        raise ConfigError(
            f"encoder global is tied to the grid of its training, {expected[0]} x {expected[1]}, and was given "
            f"{found[0]} x {found[1]}; encoder pointwise or local takes any grid"
        )
