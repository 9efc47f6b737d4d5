"""The raw files of a data set as the store's two arrays: which sample is where, in which shape, and its values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from geomano_hpc.data_prep.axes import axes_of, chosen, to_store
from geomano_hpc.data_prep.problems import Problem, keys_in
from geomano_hpc.data_prep.readers import open_variable, reading, variable_names
from geomano_hpc.data_prep.readers.variable import Variable
from geomano_hpc.data_prep.spill import Spilled, spill
from geomano_hpc.data_prep.store import ARRAYS
from geomano_hpc.errors import DataError


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
class RawField:
    """One variable of one raw file, and what of it goes into the store."""

    variable: Variable
    axes: tuple[str, ...]
    kept: dict[str, slice]  # along time and channel
    samples: np.ndarray  # numbers within the file, consecutive
    stride: int
    scattered: Scattered | None = None

    @property
    def where(self) -> str:
        return f"{self.variable.path}: {self.variable.key!r}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample in the store: x, y, channel."""
        sizes = [1 if axis == "sample" else size for axis, size in zip(self.axes, self.variable.shape, strict=True)]
        return self._thin(to_store(np.broadcast_to(np.float32(0), sizes), self.axes, self.kept)).shape[1:]

    @property
    def bytes_read_per_sample(self) -> int:
        if self.scattered is not None:
            return 4 * int(np.prod(self.shape))
        return self.variable.nbytes // self.variable.shape[self.axes.index("sample")]

    def _thin(self, values: np.ndarray) -> np.ndarray:
        return values[:, :: self.stride, :: self.stride]

    def read(self, start: int, stop: int, folder: Path) -> tuple[np.ndarray, list[int]]:
        """Samples `start` to `stop` of those in the store: [sample, x, y, channel], and which of them (numbers within
        the file) are not finite, be it at a point that is not kept."""
        numbers = self.samples[start:stop]
        with reading(self.variable.path, repr(self.variable.key)):
            if self.scattered is not None:
                raw, bad = self.scattered.read(numbers, folder)
                values = to_store(raw, ("sample", *(axis for axis in self.axes if axis != "sample")), self.kept)
            else:
                axis = self.axes.index("sample")
                raw = self.variable.read(axis, int(numbers[0]), int(numbers[-1]) + 1)
                bad = _not_finite(np.moveaxis(raw, axis, 0), numbers)
                values = np.ascontiguousarray(self._thin(to_store(raw, self.axes, self.kept)))
        bad |= _not_finite(values, numbers)
        return values, sorted(bad.intersection(numbers.tolist()))


def _not_finite(values: np.ndarray, numbers: np.ndarray) -> set[int]:
    if np.isfinite(values).all():
        return set()
    finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    return set(numbers[~finite].tolist())


@dataclass(frozen=True)
class RawFields:
    """Input and target of the same samples: the training samples first, the test samples behind them."""

    parts: dict[str, list[RawField]]  # of each array: one for the training samples, one for the test samples
    keys: tuple[str, str]

    def shape(self, name: str) -> tuple[int, ...]:
        return (sum(len(part.samples) for part in self.parts[name]), *self.parts[name][0].shape)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: self.shape(name) for name in self.parts}

    def scattered(self) -> list[Scattered]:
        """Every variable that must be rewritten, once, the most expensive to read first."""
        found = {
            part.scattered.name: part.scattered for parts in self.parts.values() for part in parts if part.scattered
        }
        return sorted(found.values(), key=lambda one: (-one.variable.stored_bytes - one.variable.nbytes // 4, one.name))

    def read(self, name: str, start: int, stop: int, folder: Path) -> tuple[np.ndarray, list[tuple[str, int]]]:
        """Samples of the store, and what is not finite among them: (file and variable, sample within the file)."""
        pieces, bad, offset = [], [], 0
        for part in self.parts[name]:
            low, high = max(start - offset, 0), min(stop - offset, len(part.samples))
            if low < high:
                values, numbers = part.read(low, high, folder)
                pieces.append(values)
                bad += [(part.where, number) for number in numbers]
            offset += len(part.samples)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces), bad


def open_fields(sources: Sequence[Path], problem: Problem) -> RawFields:
    """Open the raw files and check everything that can be checked without reading values.

    One source: its first samples train, its last samples test. Two sources: the first trains, the second tests.
    """
    keys = keys_in(variable_names(sources[0]), problem)
    variables = {
        (path, key): open_variable(path, key) for path in dict.fromkeys(sources) for key in dict.fromkeys(keys)
    }
    parts: dict[str, list[RawField]] = {name: [] for name in ARRAYS}
    for path in dict.fromkeys(sources):
        counts = []
        for name, key in zip(ARRAYS, keys, strict=True):
            variable = variables[path, key]
            axes = axes_of(variable.shape, variable.axes, name, problem, f"{path}: {key!r}")
            counts.append(variable.shape[axes.index("sample")])
        if counts[0] != counts[1]:
            raise DataError(f"{path}: {keys[0]!r} has {counts[0]} samples but {keys[1]!r} has {counts[1]}")
    for name, key in zip(ARRAYS, keys, strict=True):
        for number, source in enumerate((sources[0], sources[-1])):
            parts[name].append(_part(variables[source, key], name, problem, number, len(sources)))
    fields = RawFields(_with_scattered(parts, sources), keys)
    _check_that_they_fit(fields)
    return fields


def _part(variable: Variable, name: str, problem: Problem, number: int, files: int) -> RawField:
    where = f"{variable.path}: {variable.key!r}"
    axes = axes_of(variable.shape, variable.axes, name, problem, where)
    there, train, test = variable.shape[axes.index("sample")], problem.train_samples, problem.test_samples
    needed = train + test if files == 1 else (train, test)[number]
    if there < needed:
        raise DataError(f"{where} has {there} samples, {needed} are needed (--train {train}, --test {test})")
    first = there - test if number == 1 and files == 1 else 0
    samples = np.arange(first, first + (train, test)[number])
    return RawField(variable, axes, chosen(axes, variable.shape, name, problem, where), samples, problem.stride)


def _with_scattered(parts: dict[str, list[RawField]], sources: Sequence[Path]) -> dict[str, list[RawField]]:
    """A variable is rewritten once for all that is needed of it, be it for both arrays and both splits."""

    def name_of(part: RawField) -> str | None:
        if part.variable.can_slice(part.axes.index("sample")):
            return None
        key = part.variable.key.replace("/", "_")
        return f"{list(sources).index(part.variable.path)}-{key}-{'-'.join(part.axes)}.f32"

    everything = [part for group in parts.values() for part in group]
    scattered = {}
    for name in {name_of(part) for part in everything} - {None}:
        alike = [part for part in everything if name_of(part) == name]
        samples = np.unique(np.concatenate([part.samples for part in alike]))
        scattered[name] = Scattered(str(name), alike[0].variable, alike[0].axes, samples, alike[0].stride)
    return {
        array: [replace(part, scattered=scattered.get(name_of(part))) for part in group]
        for array, group in parts.items()
    }


def _check_that_they_fit(fields: RawFields) -> None:
    for name, (train, test) in fields.parts.items():
        if train.shape != test.shape:
            raise DataError(
                f"{train.where} gives {name}s of {train.shape} but {test.where} of {test.shape} (x, y, channel)"
            )
    given, target = (fields.parts[name][0] for name in ARRAYS)
    if given.shape[:2] != target.shape[:2]:
        raise DataError(
            f"{given.where} gives a grid of {given.shape[:2]} but {target.variable.key!r} gives {target.shape[:2]}"
            "; are the axes as they should be (see --axes)?"
        )
