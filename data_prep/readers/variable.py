"""One variable of a raw file, read piece by piece: what every reader offers, however large the file is."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np

# Of the raw values: what is read at once. Large enough to be fast, small enough that a few copies do not matter.
BLOCK_BYTES = 16 << 20

Block = tuple[tuple[slice, ...], np.ndarray]  # where in the variable, and its values


class Variable(ABC):
    """A named array of a file. The axes are those that the file's users see: those of MATLAB v7.3 are turned back."""

    path: Path
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype
    axes: tuple[str, ...] | None = None  # where the format itself says what the axes are
    stored_bytes: int  # in the file, compressed or not: what reading it costs

    @abstractmethod
    def can_slice(self, axis: int) -> bool:
        """Whether a range along this axis can be read without reading the rest of the variable, or most of it."""

    @abstractmethod
    def read(self, axis: int, start: int, stop: int) -> np.ndarray:
        """The range along one axis, whole along all others."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """The whole variable once, in the order in which it lies in the file, in blocks of about BLOCK_BYTES."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def block_shape(shape: Sequence[int], itemsize: int, unit: Sequence[int] | None = None) -> list[int]:
    """The shape of blocks of about BLOCK_BYTES that lie together in a file whose last axis varies fastest.

    `unit` is what the file holds together, such as a chunk of HDF5: a block is a whole number of units.
    """
    block = [min(u, s) for u, s in zip(unit or [1] * len(shape), shape, strict=True)]
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


class Mapped(Variable):
    """A variable that lies uncompressed in a file: mapped into memory, so that only what is touched is read."""

    def __init__(self, path: Path, key: str, values: np.ndarray) -> None:
        self.path, self.key, self._values = path, key, values
        self.shape, self.dtype, self.stored_bytes = values.shape, values.dtype, values.nbytes

    def can_slice(self, axis: int) -> bool:
        return self._values.ndim > 0 and abs(self._values.strides[axis]) == max(map(abs, self._values.strides))

    def read(self, axis: int, start: int, stop: int) -> np.ndarray:
        where = [slice(None)] * len(self.shape)
        where[axis] = slice(start, stop)
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
