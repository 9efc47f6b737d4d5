"""One variable of a raw file, read piece by piece: what every reader offers, however large the file is."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

# Of the raw values: what is read at once. Large enough to be fast, small enough that a few copies do not matter.
BLOCK_BYTES = 16 << 20

Block = tuple[tuple[slice, ...], np.ndarray]  # where in the variable, and its values


@dataclass(frozen=True)
class Coordinates:
    """The points of one axis, as the file has them."""

    start: float
    spacing: float
    even: bool  # whether the points are evenly spaced
    units: str = ""
    digest: str = ""  # of all of them


def coordinates_of(points: np.ndarray, units: str = "") -> Coordinates | None:
    """None where the points are no numbers. A step may differ from the mean by a thousandth, and by rounding."""
    points = np.asarray(points)
    if points.ndim != 1 or not len(points) or points.dtype.kind not in "fiu" or not np.isfinite(points).all():
        return None
    rounding = np.finfo(points.dtype).eps if points.dtype.kind == "f" else 0.0
    values = points.astype(np.float64)
    spacing = float(values[-1] - values[0]) / max(1, len(values) - 1)
    allowed = 1e-3 * abs(spacing) + 2 * rounding * float(np.abs(values).max())
    even = bool((np.abs(np.diff(values) - spacing) <= allowed).all())
    digest = hashlib.sha256(values.tobytes()).hexdigest()[:16]
    return Coordinates(float(values[0]), spacing, even, units, digest)


@dataclass(frozen=True)
class Layout:
    """What a format says of a variable beyond its shape and type; each is empty where it says nothing."""

    axes: tuple[str, ...] | None = None  # out of "sample", "t", "x", "y", "z", "c"; () for a scalar
    coordinates: dict[str, Coordinates] = field(default_factory=dict)  # of x, y, z and t
    boundary: dict[str, str] = field(default_factory=dict)  # of x, y, z: "periodic", "wall" or "open"
    units: str = ""
    components: tuple[str, ...] = ()  # names along "c"
    merged: int = 1  # so many last axes of the file are one axis: the rows and columns of a tensor
    dimensions: tuple[str, ...] = ()  # what the file calls its axes, where that does not say which axes they are


class Variable(ABC):
    """A named array of a file. The axes are those that the file's users see: those of MATLAB v7.3 are turned back."""

    path: Path
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype
    stored_bytes: int  # in the file, compressed or not: what reading it costs
    axes: tuple[str, ...] | None = None  # where the format itself says what the axes are
    coordinates: dict[str, Coordinates] = {}  # noqa: RUF012 - replaced, never changed
    boundary: dict[str, str] = {}  # noqa: RUF012
    units: str = ""
    dimensions: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    attributes: dict[str, Any] = {}  # noqa: RUF012

    def say(self, layout: Layout) -> None:
        """Take over what the format says. A single number has no axes in any format."""
        self.axes = () if self.shape == () else layout.axes
        if self.axes is not None and len(self.axes) != len(self.shape):
            raise ValueError(f"its format gives it the axes {' '.join(self.axes)}, but its shape is {self.shape}")
        self.coordinates = {axis: one for axis, one in layout.coordinates.items() if axis in (self.axes or ())}
        self.boundary = {axis: one for axis, one in layout.boundary.items() if axis in (self.axes or ())}
        self.units, self.components, self.dimensions = layout.units, layout.components, layout.dimensions

    @abstractmethod
    def can_slice(self, axis: int) -> bool:
        """Whether a range along this axis can be read without reading the rest of the variable, or most of it."""

    @abstractmethod
    def read(self, axis: int, start: int, stop: int) -> np.ndarray:
        """The range along one axis, whole along all others."""

    def can_cut(self, axis: int, sliced: Sequence[int]) -> bool:
        """Whether a range along this axis, too, can be read without the rest, where other axes are sliced already."""
        return not sliced and self.can_slice(axis)

    def part(self, where: Sequence[slice]) -> np.ndarray:
        """A range along each axis. Formats of which any part can be read read no more than that."""
        return self.read(0, where[0].start, where[0].stop)[(slice(None), *where[1:])]

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """The whole variable once, in the order in which it lies in the file, in blocks of about BLOCK_BYTES."""

    def check_complete(self) -> None:  # noqa: B027 - most formats have nothing to warn of
        """Warn of parts that are missing in the file and cannot be told from parts that hold nothing."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def block_shape(shape: Sequence[int], itemsize: int, unit: Sequence[int] | None = None) -> list[int]:
    """The shape of blocks of about BLOCK_BYTES that lie together in a file whose last axis varies fastest.

    `unit` is what the file holds together, such as a chunk of HDF5: a block is a whole number of units.
    """
    block = [max(1, min(u, s)) for u, s in zip(unit or [1] * len(shape), shape, strict=True)]
    for axis in reversed(range(len(shape))):
        times = BLOCK_BYTES // max(1, math.prod(block) * itemsize)
        if times < 2:
            break
        whole = -(-shape[axis] // block[axis])
        block[axis] = min(shape[axis], block[axis] * min(times, whole))
        if times < whole:
            break
    return block


def block_slices(shape: Sequence[int], block: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """The blocks of an array in the order of a file whose last axis varies fastest."""
    starts = (range(0, size, max(1, step)) for size, step in zip(shape, block, strict=True))
    for corner in product(*starts):
        yield tuple(slice(a, min(a + b, s)) for a, b, s in zip(corner, block, shape, strict=True))


class Constant(Variable):
    """A value that is in memory already, such as an attribute of the file."""

    def __init__(self, path: Path, key: str, value: np.ndarray) -> None:
        self.path, self.key = path, key
        self._value = value.reshape(()) if value.size == 1 else value
        self.shape, self.dtype, self.stored_bytes = self._value.shape, value.dtype, value.nbytes
        self.say(Layout())

    def can_slice(self, axis: int) -> bool:
        return True

    def read(self, axis: int, start: int, stop: int) -> np.ndarray:
        return self._value.take(range(start, stop), axis)

    def blocks(self) -> Iterator[Block]:
        yield tuple(slice(0, size) for size in self.shape), self._value


class Mapped(Variable):
    """A variable that lies uncompressed in a file: mapped into memory, so that only what is touched is read."""

    def __init__(self, path: Path, key: str, values: np.ndarray) -> None:
        self.path, self.key, self._values = path, key, values
        self.shape, self.dtype, self.stored_bytes = values.shape, values.dtype, values.nbytes
        self.say(Layout())

    def can_slice(self, axis: int) -> bool:
        return self._values.ndim > 0 and abs(self._values.strides[axis]) == max(map(abs, self._values.strides))

    def read(self, axis: int, start: int, stop: int) -> np.ndarray:
        where = [slice(None)] * len(self.shape)
        where[axis] = slice(start, stop)
        return np.array(self._values[tuple(where)])

    def can_cut(self, axis: int, sliced: Sequence[int]) -> bool:
        others = [abs(stride) for other, stride in enumerate(self._values.strides) if other not in (axis, *sliced)]
        return abs(self._values.strides[axis]) >= max(others, default=0)

    def part(self, where: Sequence[slice]) -> np.ndarray:
        return np.array(self._values[tuple(where)])

    def blocks(self) -> Iterator[Block]:
        slowest_first = sorted(range(len(self.shape)), key=lambda axis: -abs(self._values.strides[axis]))
        shape = [self.shape[axis] for axis in slowest_first]
        for where in block_slices(shape, block_shape(shape, self.dtype.itemsize)):
            chosen = tuple(where[slowest_first.index(axis)] for axis in range(len(shape)))
            yield chosen, np.array(self._values[chosen])


class Streamed(Variable):
    """A variable that can only be read from its beginning to its end, such as one that is compressed as a whole."""

    order = "C"  # "F" where the first axis varies fastest

    @abstractmethod
    def pieces(self, nbytes: Iterator[int]) -> Iterator[bytes | bytearray]:
        """The values as bytes in file order, cut into pieces of these sizes."""

    def can_slice(self, axis: int) -> bool:
        return False

    def read(self, axis: int, start: int, stop: int) -> np.ndarray:
        where = [slice(None)] * len(self.shape)
        where[axis] = slice(start, stop)
        return whole(self)[tuple(where)]

    def blocks(self) -> Iterator[Block]:
        shape = self.shape if self.order == "C" else self.shape[::-1]
        block = block_shape(shape, self.dtype.itemsize)
        sizes = (
            math.prod(s.stop - s.start for s in where) * self.dtype.itemsize for where in block_slices(shape, block)
        )
        for where, piece in zip(block_slices(shape, block), self.pieces(sizes), strict=True):
            values = np.frombuffer(piece, self.dtype).reshape([s.stop - s.start for s in where])
            yield (where, values) if self.order == "C" else (where[::-1], values.transpose())


def whole(variable: Variable) -> np.ndarray:
    """All of a variable in memory, where it is known to be small."""
    values = np.empty(variable.shape, variable.dtype)
    for where, block in variable.blocks():
        values[where] = block
    return values
