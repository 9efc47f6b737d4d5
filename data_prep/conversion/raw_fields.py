"""The raw files of a data set as the arrays of a store: which sample is where, in which shape, and its values."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from geomano_hpc.data_prep.conversion.raw_field import RawField, Scattered
from geomano_hpc.data_prep.readers.variable import Variable
from geomano_hpc.data_prep.store_card import Windows

Bad = tuple[str, int]  # a variable of a file, and the number of a sample that is not finite


@dataclass(frozen=True)
class StoredArray:
    """An array of the store: its fields side by side, from each raw file in turn."""

    name: str
    parts: list[list[RawField]]  # of each raw file: its fields
    frames: int = 1  # rows of the array for each sample
    merges_time: bool = False  # frames become channels, as in the benchmark's rollout

    @property
    def fields(self) -> list[str]:
        """Names along the last axis; of one frame, where frames are merged."""
        return [channel.name for part in self.parts[0] for channel in part.channels]

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Of a row in the store."""
        first = self.parts[0][0]
        frames = len(first.frames) if self.merges_time else 1
        return (*first.grid, frames * len(self.fields))

    def rows(self, group: int, numbers: np.ndarray, frames: range, folder: Path) -> tuple[np.ndarray, list[Bad]]:
        """Some frames of samples of one raw file: [sample * frame, grid ..., channel]."""
        pieces, bad = [], []
        for part in self.parts[group]:
            wanted = range(len(part.frames)) if self.merges_time else frames
            values, not_finite = part.read(numbers, wanted, folder, time_last=self.merges_time)
            pieces.append(values)
            bad += [(part.where, number) for number in not_finite]
        values = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=-1)
        # From [sample, grid ..., t, c] or [sample, t, grid ..., c].
        values = values.reshape(len(numbers) if self.merges_time else -1, *self.sample_shape)
        return np.ascontiguousarray(values), bad


@dataclass(frozen=True)
class RawFields:
    """Everything that a store will hold, in the order of the raw files."""

    arrays: dict[str, StoredArray]
    splits: dict[str, np.ndarray]  # numbers of samples in the store
    groups: np.ndarray  # of each sample in the store: its raw file
    numbers: np.ndarray  # and its number there
    constants: np.ndarray  # [sample, constant]
    windows: Windows | None
    used: list[str]  # what is used of what is there, in words
    unused: list[str]  # variables of the raw files that nothing asks for

    def shape(self, name: str) -> tuple[int, ...]:
        array = self.arrays[name]
        return (len(self.numbers) * array.frames, *array.sample_shape)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: self.shape(name) for name in self.arrays}

    def scattered(self) -> list[Scattered]:
        """Every variable that must be rewritten, once, the most expensive to read first."""
        found = {
            part.scattered.name: part.scattered
            for array in self.arrays.values()
            for parts in array.parts
            for part in parts
            if part.scattered
        }
        return sorted(found.values(), key=lambda one: (-one.variable.stored_bytes - one.variable.nbytes // 4, one.name))

    def variables(self) -> list[Variable]:
        """All that are read, each once."""
        parts = (part for array in self.arrays.values() for parts in array.parts for part in parts)
        return list({(part.variable.path, part.variable.key): part.variable for part in parts}.values())

    def bytes_read_per_row(self, name: str) -> int:
        array = self.arrays[name]
        return max(1, max(sum(part.bytes_read_per_sample for part in parts) for parts in array.parts) // array.frames)

    def read(self, name: str, start: int, stop: int, folder: Path) -> tuple[np.ndarray, list[Bad]]:
        """Rows of an array of the store, and what is not finite among them."""
        pieces, bad = [], []
        array = self.arrays[name]
        for first, last, frames in _boxes(start, stop, array.frames):
            for group, numbers in self._runs(first, last):
                values, not_finite = array.rows(group, numbers, frames, folder)
                pieces.append(values)
                bad += not_finite
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces), bad

    def _runs(self, first: int, last: int) -> Iterator[tuple[int, np.ndarray]]:
        """Samples of the store in pieces that follow each other in one raw file."""
        groups, numbers = self.groups[first:last], self.numbers[first:last]
        cuts = np.flatnonzero((np.diff(groups) != 0) | (np.diff(numbers) != 1)) + 1
        for piece in np.split(np.arange(last - first), cuts):
            yield int(groups[piece[0]]), numbers[piece]


def _boxes(start: int, stop: int, frames: int) -> Iterator[tuple[int, int, range]]:
    """Rows as samples and their frames: a part of the first sample, whole ones, a part of the last one."""
    while start < stop:
        sample, frame = divmod(start, frames)
        whole = (stop - start) // frames
        if frame == 0 and whole:
            yield sample, sample + whole, range(frames)
            start += whole * frames
        else:
            end = min(frames, frame + stop - start)
            yield sample, sample + 1, range(frame, end)
            start += end - frame


def with_scattered(arrays: dict[str, StoredArray], groups: np.ndarray, numbers: np.ndarray) -> dict[str, StoredArray]:
    """A variable is rewritten once for all that is needed of it, be it for several arrays and splits."""
    names: dict[str, int] = {}
    held: dict[Any, Any] = {}
    needed: dict[tuple[Path, str, tuple[str, ...], range], Scattered] = {}

    def place(part: RawField, group: int) -> RawField:
        along = "sample" if "sample" in part.axes else "t"
        if along not in part.axes or part.variable.can_slice(part.axes.index(along)):
            return replace(part, held=held)
        if along == "t" and len(part.frames) == 1:
            return part  # read once
        frames = part.frames if along == "t" else range(0)
        key = (part.variable.path, part.variable.key, part.axes, frames)
        if key not in needed:
            file = names.setdefault(str(part.variable.path), len(names))
            word = "".join(letter if letter.isalnum() else "_" for letter in part.variable.key)
            name = f"{file}-{len(needed)}-{word}-{'-'.join(part.axes)}.f32"
            wanted = np.sort(numbers[groups == group]) if along == "sample" else np.array(part.frames)
            needed[key] = Scattered(name, part.variable, part.axes, along, wanted, part.stride)
        return replace(part, scattered=needed[key], held=held)

    return {
        name: replace(array, parts=[[place(part, g) for part in parts] for g, parts in enumerate(array.parts)])
        for name, array in arrays.items()
    }
