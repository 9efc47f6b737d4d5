"""Losses of each sample [B], by name or the user's: names stand in config/choices.py.

The loop sums them over the batch, as the benchmark does. Axes: B batch, H x W grid, C channels.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F

from geomano_hpc.config import LossConfig
from geomano_hpc.config.by_name import resolve_callable
from geomano_hpc.config.choices import LOSSES, place_of
from geomano_hpc.errors import ConfigError, in_one_line

LossOfEach = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # prediction, target [B, H, W, C] -> [B]


def make_loss(config: LossConfig) -> LossOfEach:
    """The loss that the recipe names, without the gradient term, which goes with any."""
    called_with = "(prediction, target, **loss.options)"
    field = torch.zeros(1, 1, 1, 1)
    reference = place_of(config.name, LOSSES)
    found = resolve_callable(reference, f"loss.name {config.name}", called_with, field, field, **config.options)
    return partial(found, **config.options) if config.options else found


def of_each(loss: LossOfEach, prediction_BHWC: torch.Tensor, target_BHWC: torch.Tensor) -> torch.Tensor:
    """The loss of each sample [B]; another shape is an error."""
    found = loss(prediction_BHWC, target_BHWC)
    if not isinstance(found, torch.Tensor) or found.shape != prediction_BHWC.shape[:1]:
        what = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
        raise ConfigError(
            f"loss.name: gave {what} for a batch of {len(prediction_BHWC)}; expected one loss for each sample, "
            f"of shape ({len(prediction_BHWC)},): take the mean over all axes but the first"
        )
    return found


def try_out_loss(config: LossConfig, height: int, width: int, channels: int) -> None:
    """A loss of the user's is asked for two made-up samples and their gradient before anything is written or made."""
    if config.name in LOSSES:
        return
    generator = torch.Generator().manual_seed(0)
    prediction, target = torch.randn(2, 2, height, width, channels, generator=generator)
    try:
        found = of_each(make_loss(config), prediction.requires_grad_(), target).sum()
        if not found.requires_grad:
            raise ConfigError(f"loss.name {config.name}: what it gives has no gradient; is it detached?")
        found.backward()
    except ConfigError:
        raise
    except Exception as error:
        shape = [2, height, width, channels]
        raise ConfigError(f"loss.name {config.name}: {in_one_line(error)}, when given samples of {shape}") from error


def relative_l2(prediction_BHWC: torch.Tensor, target_BHWC: torch.Tensor) -> torch.Tensor:
    """|| prediction - target ||_2 / || target ||_2 of each sample [B]."""
    difference = (prediction_BHWC - target_BHWC).flatten(1)
    return torch.linalg.vector_norm(difference, dim=1) / torch.linalg.vector_norm(target_BHWC.flatten(1), dim=1)


def relative_l1(prediction_BHWC: torch.Tensor, target_BHWC: torch.Tensor) -> torch.Tensor:
    """|| prediction - target ||_1 / || target ||_1 of each sample [B]."""
    return (prediction_BHWC - target_BHWC).abs().flatten(1).sum(1) / target_BHWC.abs().flatten(1).sum(1)


def mse(prediction_BHWC: torch.Tensor, target_BHWC: torch.Tensor) -> torch.Tensor:
    """The mean of (prediction - target)^2 over grid and channels of each sample [B]."""
    return (prediction_BHWC - target_BHWC).square().flatten(1).mean(1)


def relative_h1(prediction_BHWC: torch.Tensor, target_BHWC: torch.Tensor) -> torch.Tensor:
    """The relative error in the norm of H1, values and first derivatives together, of each sample [B].

    Derivatives are central differences on inner points, as on the unit square: a step is 1/H or 1/W.
    """
    squared = _h1_squared(prediction_BHWC - target_BHWC) / _h1_squared(target_BHWC)
    is_exact = squared == 0  # where the root has no derivative
    return squared.masked_fill(is_exact, 1).sqrt().masked_fill(is_exact, 0)


def _h1_squared(field_BHWC: torch.Tensor) -> torch.Tensor:
    _, height, width, _ = field_BHWC.shape
    d_dx = (field_BHWC[:, 2:] - field_BHWC[:, :-2]) * (height / 2)
    d_dy = (field_BHWC[:, :, 2:] - field_BHWC[:, :, :-2]) * (width / 2)
    return sum(part.square().flatten(1).sum(1) for part in (field_BHWC, d_dx, d_dy))  # type: ignore[return-value]


def central_differences(field_BHWC: torch.Tensor, boundary: Sequence[str] = ("wall", "wall")) -> list[torch.Tensor]:
    """The derivatives along the axes of the grid that have more than two points, in units of the grid step. Beyond a
    wall the field is zero, a periodic one goes on at its other end; where neither is known, only inner points count."""
    axes = _axes_of_derivatives(field_BHWC)
    around = _padded(field_BHWC, [axis for axis in axes if boundary[axis - 1] == "wall"])
    for axis in axes:
        if boundary[axis - 1] == "periodic":
            points = around.shape[axis]
            around = torch.cat([around.narrow(axis, points - 1, 1), around, around.narrow(axis, 0, 1)], axis)
    found = []
    for axis in axes:
        before, behind = [slice(None)] * 3, [slice(None)] * 3
        for other in axes:
            if boundary[other - 1] in ("wall", "periodic"):
                before[other] = behind[other] = slice(1, -1)
        before[axis], behind[axis] = slice(None, -2), slice(2, None)
        found.append((around[tuple(behind)] - around[tuple(before)]) / 2)
    return found


def _axes_of_derivatives(field_BHWC: torch.Tensor) -> list[int]:
    return [axis for axis in (1, 2) if field_BHWC.shape[axis] > 2]


def _padded(field_BHWC: torch.Tensor, axes: Sequence[int]) -> torch.Tensor:
    """With a point of zero at both ends of these axes."""
    sides = [int(axis in axes) for axis in (2, 2, 1, 1)]
    return F.pad(field_BHWC, (0, 0, *sides)) if axes else field_BHWC


def gradient_loss(
    prediction_BHWC: torch.Tensor, target_BHWC: torch.Tensor, boundary: Sequence[str] = ("wall", "wall")
) -> torch.Tensor:
    """L_g: relative L2 of d/dx plus that of d/dy, of each sample [B]; of a line, of its one derivative.

    At walls the prediction's border is set to zero before differencing. The grid step cancels in the quotient.
    """
    walls = [axis for axis in _axes_of_derivatives(target_BHWC) if boundary[axis - 1] == "wall"]
    inner = prediction_BHWC[tuple(slice(1, -1) if axis in walls else slice(None) for axis in range(3))]
    predicted = central_differences(_padded(inner, walls), boundary)
    target = central_differences(target_BHWC, boundary)
    return sum(relative_l2(*pair) for pair in zip(predicted, target, strict=True))  # type: ignore[return-value]
