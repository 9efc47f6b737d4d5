"""One variable of one raw file, and what of it goes into a store: samples, frames, points, channels."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from geomano_hpc.data_prep.axes import SPACE, arranged
from geomano_hpc.data_prep.readers import reading
from geomano_hpc.data_prep.readers.variable import Variable
from geomano_hpc.data_prep.spill import Spilled, spill


@dataclass(frozen=True)
class Scattered:
    """A variable whose samples cannot be read one by one, and what of it is rewritten so that they can (spill.py)."""

    name: str  # of the file that it is rewritten to
    variable: Variable
    axes: tuple[str, ...]
    samples: np.ndarray  # numbers within the raw file, ascending
    stride: int

    def rewrite(self, folder: Path) -> None:
        """Unless that is done already."""
        if not Spilled.complete(folder / self.name):
            spill(self.variable, self.axes, self.samples, self.stride, folder / self.name)

    def read(self, numbers: np.ndarray, folder: Path) -> tuple[np.ndarray, set[int]]:
        spilled = Spilled(folder / self.name)
        first = int(np.searchsorted(self.samples, numbers[0]))
        return spilled.read(first, first + len(numbers)), set(self.samples[spilled.bad].tolist())


@dataclass(frozen=True)
class Channel:
    """A field: one channel of a variable, or a part of complex numbers."""

    name: str
    index: int = 0
    part: str = ""  # real or imag


@dataclass(frozen=True)
class RawField:
    """One variable, its axes, and the fields that are taken from it."""

    variable: Variable
    axes: tuple[str, ...]
    frames: range  # kept of the file's frames
    channels: tuple[Channel, ...]
    stride: int
    space: tuple[str, ...]  # the raw axes behind those of the store; "" for the one row of a line
    grid: tuple[int, ...]  # points along them in the store
    samples: int  # in the file; of a variable without such an axis: as the others have
    scattered: Scattered | None = None

    @property
    def where(self) -> str:
        return f"{self.variable.path}: {self.variable.key!r}"

    @property
    def bytes_read_per_sample(self) -> int:
        if self.scattered is not None:
            return 4 * int(np.prod(self.grid)) * len(self.frames) * len(self.channels)
        return max(1, self.variable.nbytes // self.samples)

    def read(self, numbers: np.ndarray, frames: range, folder: Path, time_last: bool) -> tuple[np.ndarray, list[int]]:
        """Samples that follow each other in the file, and of those that are kept some frames, as float32
        [sample, t, grid ..., c] (or [sample, grid ..., t, c]); and which of them (numbers within the file) are not
        finite, be it at a point that is not kept."""
        with reading(self.variable.path, repr(self.variable.key)):
            raw, axes, bad = self._raw(numbers, folder)
            kept = self._kept(raw, axes, frames)
            order = ("sample", *self.space, "t", "c") if time_last else ("sample", "t", *self.space, "c")
            values = self._chosen_channels(arranged(kept, axes, order))
            shape, first = list(values.shape), order.index(self.space[0])
            shape[0], shape[first : first + len(self.space)] = len(numbers), self.grid
            with np.errstate(over="ignore"):  # what float32 cannot hold becomes Inf, which is looked for
                values = np.broadcast_to(values, shape).astype(np.float32, copy=False)
        bad |= _not_finite(values, numbers)
        return values, sorted(bad.intersection(numbers.tolist()))

    def _raw(self, numbers: np.ndarray, folder: Path) -> tuple[np.ndarray, tuple[str, ...], set[int]]:
        """Values with all that the file has of these samples, their axes, and samples that are not finite."""
        if self.scattered is not None:
            raw, bad = self.scattered.read(numbers, folder)
            return raw, ("sample", *(axis for axis in self.axes if axis != "sample")), bad
        if "sample" not in self.axes:
            raw = self.variable.read(0, 0, self.variable.shape[0])
            return raw, self.axes, set() if np.isfinite(raw).all() else set(numbers.tolist())
        axis = self.axes.index("sample")
        raw = self.variable.read(axis, int(numbers[0]), int(numbers[-1]) + 1)
        return raw, self.axes, _not_finite(np.moveaxis(raw, axis, 0), numbers)

    def _kept(self, raw: np.ndarray, axes: tuple[str, ...], frames: range) -> np.ndarray:
        thin = slice(None) if self.scattered is not None else slice(None, None, self.stride)
        kept = self.frames[frames.start : frames.stop]
        time = slice(kept.start, kept.stop, kept.step)
        return raw[tuple(thin if axis in SPACE else time if axis == "t" else slice(None) for axis in axes)]

    def _chosen_channels(self, values: np.ndarray) -> np.ndarray:
        """The last axis: those that are fields, in their order."""
        if [channel.index for channel in self.channels] == list(range(values.shape[-1])) and not self.channels[0].part:
            return values
        picked = [
            getattr(values[..., channel.index], channel.part) if channel.part else values[..., channel.index]
            for channel in self.channels
        ]
        return np.stack(picked, axis=-1)


def _not_finite(values: np.ndarray, numbers: np.ndarray) -> set[int]:
    if np.isfinite(values).all():
        return set()
    finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    return set(numbers[~finite].tolist())
