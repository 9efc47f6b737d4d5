"""One variable of one raw file, and what of it goes into a store: samples, frames, points, channels."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from geomano_hpc.data_prep.conversion.axes import SPACE, arranged
from geomano_hpc.data_prep.conversion.spill import Spilled, spill
from geomano_hpc.data_prep.readers import reading
from geomano_hpc.data_prep.readers.variable import Variable


@dataclass(frozen=True)
class Scattered:
    """A variable whose samples (or, of a single one, whose frames) cannot be read one by one, and what of it is
    rewritten so that they can (spill.py)."""

    name: str  # of the file that it is rewritten to
    variable: Variable
    axes: tuple[str, ...]
    along: str  # sample, or t
    numbers: np.ndarray  # within the raw file, ascending
    stride: int

    def rewrite(self, folder: Path) -> None:
        """Unless that is done already."""
        if not Spilled.complete(folder / self.name):
            spill(self.variable, self.axes, self.along, self.numbers, self.stride, folder / self.name)

    def read(self, first: int, last: int, folder: Path) -> tuple[np.ndarray, set[int]]:
        """From one number to another [sample or t, the other raw axes in their order], and which are not finite."""
        spilled = Spilled(folder / self.name)
        start, stop = np.searchsorted(self.numbers, (first, last + 1)).tolist()
        return spilled.read(start, stop), set(self.numbers[spilled.bad].tolist())


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
    # The last samples that were read with all of their frames, where pieces of them are asked for one after the other;
    # shared by all fields, so that memory holds those of one.
    held: dict[tuple[object, ...], "_Raw"] = field(default_factory=dict, repr=False, compare=False)

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
            raw = self._raw(numbers, self.frames[frames.start : frames.stop], folder)
            kept = raw.values[tuple(raw.cuts.get(axis, slice(None)) for axis in raw.axes)]
            order = ("sample", *self.space, "t", "c") if time_last else ("sample", "t", *self.space, "c")
            values = self._chosen_channels(arranged(kept, raw.axes, order))
            shape, first = list(values.shape), order.index(self.space[0])
            shape[0], shape[first : first + len(self.space)] = len(numbers), self.grid
            with np.errstate(over="ignore"):  # what float32 cannot hold becomes Inf, which is looked for
                values = np.broadcast_to(values, shape).astype(np.float32, copy=False)
        bad = raw.bad | _not_finite(values, numbers)
        return values, sorted(bad.intersection(numbers.tolist()))

    def _raw(self, numbers: np.ndarray, frames: range, folder: Path) -> "_Raw":
        """What the file has of these samples, and of no more frames than these where those can be read alone."""
        time = slice(frames.start, frames.stop, frames.step)
        if self.scattered is not None and self.scattered.along == "t":
            raw, bad = self.scattered.read(frames[0], frames[-1], folder)
            return _Raw(raw, self._in_order("t"), set(numbers.tolist()) if bad & set(frames) else set(), {})
        samples = [self.axes.index("sample")] if "sample" in self.axes else []
        cuts = {axis: slice(None, None, self.stride) for axis in SPACE}
        if self.scattered is None and "t" in self.axes and self.variable.can_cut(self.axes.index("t"), samples):
            alone = {"t": slice(frames.start, frames[-1] + 1), "sample": slice(int(numbers[0]), int(numbers[-1]) + 1)}
            where = [alone.get(axis, slice(0, size)) for axis, size in zip(self.axes, self.variable.shape, strict=True)]
            raw = self.variable.part(where)
            return _Raw(raw, self.axes, self._bad(raw, numbers), {**cuts, "t": slice(None, None, frames.step)})
        place = (self.variable.path, self.variable.key, self.axes, int(numbers[0]), int(numbers[-1]))
        if place not in self.held:
            found = self._whole(numbers, folder, cuts)
            self.held.clear()
            if len(frames) == len(self.frames):
                return replace(found, cuts={**found.cuts, "t": time})
            self.held[place] = found
        found = self.held[place]
        return replace(found, cuts={**found.cuts, "t": time})

    def _whole(self, numbers: np.ndarray, folder: Path, cuts: dict[str, slice]) -> "_Raw":
        """All frames of these samples."""
        if self.scattered is not None:
            raw, bad = self.scattered.read(int(numbers[0]), int(numbers[-1]), folder)
            return _Raw(raw, self._in_order("sample"), bad, {})
        if "sample" not in self.axes:
            raw = self.variable.read(0, 0, self.variable.shape[0])
        else:
            raw = self.variable.read(self.axes.index("sample"), int(numbers[0]), int(numbers[-1]) + 1)
        return _Raw(raw, self.axes, self._bad(raw, numbers), cuts)

    def _in_order(self, first: str) -> tuple[str, ...]:
        return first, *(axis for axis in self.axes if axis != first)

    def _bad(self, raw: np.ndarray, numbers: np.ndarray) -> set[int]:
        """Samples that are not finite, be it at a point that is not kept."""
        if "sample" not in self.axes:
            return set() if np.isfinite(raw).all() else set(numbers.tolist())
        return _not_finite(np.moveaxis(raw, self.axes.index("sample"), 0), numbers)

    def _chosen_channels(self, values: np.ndarray) -> np.ndarray:
        """The last axis: those that are fields, in their order."""
        if [channel.index for channel in self.channels] == list(range(values.shape[-1])) and not self.channels[0].part:
            return values
        picked = [
            getattr(values[..., channel.index], channel.part) if channel.part else values[..., channel.index]
            for channel in self.channels
        ]
        return np.stack(picked, axis=-1)


@dataclass(frozen=True)
class _Raw:
    """Values of the file, their axes, samples that are not finite, and what of each axis is kept."""

    values: np.ndarray
    axes: tuple[str, ...]
    bad: set[int]
    cuts: dict[str, slice]


def _not_finite(values: np.ndarray, numbers: np.ndarray) -> set[int]:
    if np.isfinite(values).all():
        return set()
    finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    return set(numbers[~finite].tolist())
