"""Arrays of which any part can be read, and which lie in chunks that are read as a whole: HDF5 and Zarr."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from geomano_hpc.data_prep.readers.variable import BLOCK_BYTES, Block, Layout, Variable, block_shape, block_slices

_MOST_HELD_BYTES = 16 * BLOCK_BYTES

Decoding = Callable[[np.ndarray], np.ndarray]


class Chunked(Variable):
    """The array of the file as its users see it: axes turned back, the axes of a tensor as one, numbers unpacked."""

    def describe(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype,
        chunks: tuple[int, ...] | None,
        layout: Layout,
        reverse: bool = False,
        decoding: tuple[np.dtype, Decoding] | None = None,
    ) -> None:
        """`shape`, `dtype` and `chunks` are those of the file; no chunks means that the values lie in a row."""
        self._stored, self._chunks, self._reversed, self._merged = shape, chunks, reverse, layout.merged
        self.dtype = dtype if decoding is None else decoding[0]
        self._decode = None if decoding is None else decoding[1]
        self._itemsize = max(dtype.itemsize, self.dtype.itemsize)
        self.shape = self._seen_shape(shape)
        self.say(layout)

    @abstractmethod
    def _opened(self) -> AbstractContextManager[Any]:
        """The array of the file, open to be indexed."""

    def _seen_shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        if self._merged == 1:
            return stored[::-1] if self._reversed else stored
        return (*stored[: -self._merged], math.prod(stored[-self._merged :]))

    def _seen(self, values: np.ndarray) -> np.ndarray:
        if self._decode is not None:
            values = self._decode(values)
        return values.transpose() if self._reversed else values.reshape(self._seen_shape(values.shape))

    def _is_merged(self, axis: int) -> bool:
        return self._merged > 1 and axis == len(self.shape) - 1

    def _in_file(self, axis: int) -> int:
        return len(self._stored) - 1 - axis if self._reversed else axis

    def can_slice(self, axis: int) -> bool:
        """The slowest axis of the file; or any axis along which chunks are thin, since a chunk is read as a whole."""
        if self._is_merged(axis):
            return False
        at = self._in_file(axis)
        if self._chunks is None:
            return at == 0
        return self._chunks[at] == 1 or self._chunks[at] * self.nbytes // max(1, self._stored[at]) <= 4 * BLOCK_BYTES

    def read(self, axis: int, start: int, stop: int) -> np.ndarray:
        if self._is_merged(axis):
            values = np.empty((*self.shape[:-1], stop - start), self.dtype)
            for place, block in self.blocks():
                values[place[:-1]] = block[..., start:stop]
            return values
        where = [slice(None)] * len(self._stored)
        where[self._in_file(axis)] = slice(start, stop)
        with self._opened() as array:
            return self._seen(np.asarray(array[tuple(where)]))

    def can_cut(self, axis: int, sliced: Sequence[int]) -> bool:
        if self._is_merged(axis):
            return False
        at = self._in_file(axis)
        others = {self._in_file(other) for other in sliced}
        one = self.nbytes // max(1, math.prod(self._stored[other] for other in others))
        if self._chunks is not None and self._chunks[at] > 1 and one <= _MOST_HELD_BYTES:
            return False  # a chunk is unpacked for each range of it: better all of it once, where it fits into memory
        return not set(range(at)) - others or self.can_slice(axis)

    def part(self, where: Sequence[slice]) -> np.ndarray:
        if self._merged == 1:
            with self._opened() as array:
                return self._seen(np.asarray(array[tuple(where[::-1] if self._reversed else where)]))
        with self._opened() as array:
            values = self._seen(np.asarray(array[(*where[:-1], *[slice(None)] * self._merged)]))
        return values[..., where[-1]]

    def blocks(self) -> Iterator[Block]:
        unit = list(self._chunks or [1] * len(self._stored))
        kept = len(self._stored) - (0 if self._merged == 1 else self._merged)
        unit[kept:] = self._stored[kept:]
        with self._opened() as array:
            for where in block_slices(self._stored, block_shape(self._stored, self._itemsize, unit)):
                values = self._seen(np.asarray(array[where]))
                if self._reversed:
                    yield where[::-1], values
                else:
                    yield (where if self._merged == 1 else (*where[:kept], slice(0, self.shape[-1]))), values
