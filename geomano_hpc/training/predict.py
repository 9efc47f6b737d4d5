"""Predictions from fields of one's own, in physical units: from arrays, tensors, and files.

They need the run folder or its file of weights only, not the data of the training.
Axes: B samples, H x W grid, C channels (the fields of each frame, frame by frame).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import nn

from geomano_hpc.atomic import replacing
from geomano_hpc.config import ModelConfig, Recipe
from geomano_hpc.data import Signature, Split
from geomano_hpc.errors import ConfigError, DataError, in_one_line
from geomano_hpc.models import build_model
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.engines.engine import pick_device
from geomano_hpc.training.evaluate import evaluating
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.records.weights import Alone, load_alone
from geomano_hpc.training.sampling import axes_of, grid_of, place
from geomano_hpc.training.tasks import Task

BATCH_SIZE = 16  # samples that are predicted together, unless the caller says otherwise
_MOST_CHANNELS = 4  # a last axis as short as this is one of channels, not the width of a grid


@dataclass(frozen=True)
class Layout:
    """Where the axes of given fields are, and what shape the prediction has that goes back."""

    single: bool  # one sample, without an axis for samples
    channel_axis: bool
    line: bool = False  # without the axis of the one row that a line has

    def with_all_axes(self, fields: torch.Tensor) -> torch.Tensor:
        """[B, H, W, C]"""
        fields = fields if self.channel_axis else fields[..., None]
        fields = fields.unsqueeze(-3) if self.line else fields
        return fields[None] if self.single else fields

    def without(self, predicted_BHWC: torch.Tensor) -> torch.Tensor:
        """The channel axis goes where there is one channel and the given fields have no such axis either."""
        predicted = predicted_BHWC.squeeze(1) if self.line else predicted_BHWC
        predicted = predicted[..., 0] if self._leaves_out(predicted_BHWC.shape[-1]) else predicted
        return predicted[0] if self.single else predicted

    def grid(self, shape: Sequence[int]) -> tuple[int, int]:
        """(H, W) of fields of this shape."""
        sides = shape[0 if self.single else 1 :]
        return (1, sides[0]) if self.line else (sides[0], sides[1])

    def shape_without(self, shape: Sequence[int], channels: int) -> tuple[int, ...]:
        """Of the prediction that goes back for fields of this shape."""
        batch = () if self.single else (shape[0],)
        height, width = self.grid(shape)
        points = (width,) if self.line else (height, width)
        return (*batch, *points, *(() if self._leaves_out(channels) else (channels,)))

    def _leaves_out(self, channels: int) -> bool:
        return not self.channel_axis and channels == 1


@dataclass(frozen=True)
class Predictor:
    """A trained model with its normalisers, on a device."""

    model: nn.Module
    config: ModelConfig
    task: Task
    alone: Alone
    device: torch.device
    tied_to_grid: str  # what ties it, in words; empty for any grid
    source: str  # named in errors

    @property
    def known(self) -> Signature:
        return self.alone.signature

    @property
    def is_rollout(self) -> bool:
        return self.known.is_rollout

    def layout(self, shape: tuple[int, ...], source: str) -> Layout:
        """How fields of this shape are read; what does not fit the model is refused."""
        C = self.known.in_channels
        of_lines = self.alone.grid[0] == 1
        layout = (_layout_of_lines(shape, C) if of_lines else None) or _layout(shape, C)
        if 0 in shape:
            raise DataError(f"{source}: is empty: its shape is {shape}")
        if layout is None:
            points = "W" if of_lines else "H, W"
            wanted = f"1 channel: ({points}), (samples, {points})" if C == 1 else f"{C} channels: ({points}, {C})"
            names = f": {self.channels_in_words()}" if C > 1 else ""
            raise DataError(f"{source}: has shape {shape}; the model takes {wanted} or (samples, {points}, {C}){names}")
        grid = layout.grid(shape)
        if self.tied_to_grid and grid != self.alone.grid:
            raise DataError(
                f"{source}: has {grid} points; {self.tied_to_grid} is tied to the grid of its training, "
                f"{self.alone.grid}"
            )
        return layout

    def channels_in_words(self) -> str:
        """What an input has on its last axis, in order."""
        known = self.known
        frames = f"{known.frames_in} frames of " if known.is_rollout else ""
        return ", ".join([f"{frames}{', '.join(known.inputs)}", *known.context])

    def frames(self, steps: int | None) -> int:
        """Of the prediction: as many frames of a rollout as are asked for, or were trained; of a steady problem 1."""
        if not self.is_rollout:
            if steps is not None:
                raise ConfigError(f"{self.source} solves a steady problem, which has no frames to count")
            return 1
        if steps is not None and (not isinstance(steps, int) or steps < 1):
            raise ConfigError(f"{steps!r} frames of a rollout were asked for, expected a whole number of at least 1")
        return steps or self.known.frames_out

    def channels(self, steps: int | None) -> int:
        """Of the prediction: the fields of each frame."""
        return self.frames(steps) * len(self.known.targets)

    def predict(self, fields_BHWC: torch.Tensor, steps: int | None = None) -> torch.Tensor:
        """One batch [B, H, W, C] in physical units, computed on the model's device in evaluation mode."""
        frames, channels, wanted = self.frames(steps), self.channels(steps), list(fields_BHWC.shape)
        given = fields_BHWC.detach().to(self.device, torch.float32)
        trained = axes_of(self.known, self.alone.grid)
        place(self.model, trained, grid_of(trained, wanted[1:3]), self.source)
        try:
            with evaluating(self.model):
                predicted = self.task.roll_out(self.model, given, frames).float()
        except (RuntimeError, ValueError, IndexError) as error:  # a model of the user's may be tied to its grid
            raise DataError(f"{self.source}: the model fails on fields of {wanted} ({in_one_line(error)})") from error
        if list(predicted.shape) != [*wanted[:-1], channels]:
            raise DataError(
                f"{self.source}: the model gives {list(predicted.shape)} for fields of {wanted}, trained on "
                f"{self.alone.grid[0]} x {self.alone.grid[1]} points"
            )
        return predicted


def load_predictor(
    recipe: Recipe | None, weights: Path, device: str | torch.device | None = None, source: str | None = None
) -> Predictor:
    """From the weights of a run. Without its recipe the file must say which model it is; older ones do not."""
    alone = load_alone(weights)
    config = alone.model if recipe is None else recipe.model
    precision = alone.precision if recipe is None else recipe.compute.precision
    if config is None or precision is None:
        raise ConfigError(
            f"{weights}: does not say which model it is (written by an older version); load the whole run folder"
        )
    known = alone.signature
    model = build_model(config, known.seen_channels, known.out_channels, alone.grid)
    try:
        model.load_state_dict(alone.weights)
    except RuntimeError as error:
        raise DataError(f"{weights}: does not fit its model ({str(error).splitlines()[-1].strip()})") from error
    place = pick_device(Ranks(0, 1, 0)) if device is None else _device(device)
    tied = config.tied_to_grid()
    task = Task(Split(known, torch.empty(0), torch.empty(0)), 0.0, precision)  # no loss is computed here
    return Predictor(model.to(place).eval(), config, task, alone, place, tied, source or str(weights))


def predict_file(
    folder: RunFolder, given: Path, out: Path, frames: int | None = None, best: bool | None = None
) -> tuple[int, ...]:
    """Read inputs from one .npy file and write predictions to another; returns the shape of what was written.

    A single field (H, W) comes out as one; the channel axis is left out where there is one channel and the input has
    none either.
    """
    predictor = load_predictor(folder.recipe(), folder.weights(best), source=str(folder.path))
    if out.resolve() == given.resolve():
        raise ConfigError(f"{out}: is the input, which would be written over; name another file with --out")
    fields = _read(given)
    layout = predictor.layout(fields.shape, str(given))
    channels = predictor.channels(frames)
    shape = layout.shape_without(fields.shape, channels)
    with replacing(out) as temporary:
        target = open_memmap(temporary, mode="w+", dtype=np.float32, shape=shape)
        for part in [...] if layout.single else parts_of(len(fields), BATCH_SIZE):
            some = torch.from_numpy(np.array(fields[part], dtype=np.float32))
            if not some.isfinite().all():
                where = f" among samples {part.start} to {part.stop - 1}" if isinstance(part, slice) else ""
                raise DataError(f"{given}: holds NaN or Inf{where}")
            target[part] = layout.without(predictor.predict(layout.with_all_axes(some), frames).cpu()).numpy()
        target.flush()
    return shape


def parts_of(samples: int, batch_size: int) -> list[slice]:
    """The samples in batches, the last of which may be smaller."""
    return [slice(first, first + batch_size) for first in range(0, samples, batch_size)]


def _layout_of_lines(shape: tuple[int, ...], channels: int) -> Layout | None:
    """Without the axis of the one row: (W,), (samples, W), (W, C), (samples, W, C)."""
    if shape[-1] == channels and len(shape) in (2, 3) and not (len(shape) == 3 and shape[0] == 1 < shape[1]):
        return Layout(single=len(shape) == 2, channel_axis=True, line=True)
    if channels == 1 and len(shape) in (1, 2) and shape[0] != 1:
        return Layout(single=len(shape) == 1, channel_axis=False, line=True)
    return None


def _layout(shape: tuple[int, ...], channels: int) -> Layout | None:
    if len(shape) == 4 and shape[-1] == channels:
        return Layout(single=False, channel_axis=True)
    if len(shape) == 3 and shape[-1] == channels:  # with one channel, too: no grid is one point wide
        return Layout(single=True, channel_axis=True)
    if channels == 1 and (len(shape) == 2 or (len(shape) == 3 and shape[-1] > _MOST_CHANNELS)):
        return Layout(single=len(shape) == 2, channel_axis=False)
    return None


def _read(given: Path) -> np.ndarray:
    try:
        fields: np.ndarray = np.load(given, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{given}: cannot be read as a .npy file ({error})") from error
    if not isinstance(fields, np.ndarray) or fields.dtype.kind not in "fiu":
        raise DataError(f"{given}: not an array of real numbers")
    return fields


def _device(wanted: str | torch.device) -> torch.device:
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA fails with an assertion
        raise ConfigError(f"device {str(wanted)!r} cannot be used here ({str(error).splitlines()[0]})") from error
    return device
