"""HDF5 in its three dresses: plain files, MATLAB v7.3 with its axes reversed, and PDEBench with its own axes."""

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from geomano_hpc.data_prep.readers.variable import BLOCK_BYTES, Block, Variable, block_shape, block_slices

# PDEBench's time-dependent fields, by number of axes; its Darcy files hold the coefficient `nu` beside `tensor`.
_PDEBENCH_AXES = {
    3: ("sample", "t", "x"),
    4: ("sample", "t", "x", "y"),
    5: ("sample", "t", "x", "y", "c"),
}


def names(path: Path) -> list[str]:
    with h5py.File(path, "r") as file:
        found = [name for name, item in file.items() if isinstance(item, h5py.Dataset)]
        seeds = _seeds(file)
        return found + (sorted(file[seeds[0]]) if seeds else [])


def variable(path: Path, key: str) -> Variable:
    with h5py.File(path, "r") as file:
        if key in file:
            return Hdf5Variable(path, key, file)
        return Hdf5Seeds(path, key, file, _seeds(file))


def _seeds(file: h5py.File) -> list[str]:
    """PDEBench's other layout: a group for each sample, 0000/data, 0001/data, ..."""
    return sorted((name for name, item in file.items() if name.isdigit() and isinstance(item, h5py.Group)), key=int)


class Hdf5Variable(Variable):
    """A dataset. MATLAB v7.3 writes the first axis as the last, so that the samples lie apart in the file."""

    def __init__(self, path: Path, key: str, file: h5py.File) -> None:
        dataset = file[key]
        self.path, self.key = path, key
        self._reversed = "MATLAB_class" in dataset.attrs
        self._shape, self._chunks = dataset.shape, dataset.chunks
        self.shape = dataset.shape[::-1] if self._reversed else dataset.shape
        self.dtype = dataset.dtype
        self.stored_bytes = dataset.id.get_storage_size()
        if not self._reversed and ("tensor" in file or "t-coordinate" in file):
            self.axes = _PDEBENCH_AXES.get(len(self.shape))
            if "nu" in file:
                self.axes = {"nu": ("sample", "x", "y"), "tensor": ("sample", "c", "x", "y")}.get(key)

    def _axis_in_file(self, axis: int) -> int:
        return len(self._shape) - 1 - axis if self._reversed else axis

    def can_slice(self, axis: int) -> bool:
        """The slowest axis of the file; chunks along it must be thin, since a chunk is read as a whole."""
        if self._axis_in_file(axis) != 0:
            return False
        chunk = 0 if self._chunks is None else self._chunks[0] * self.nbytes // max(1, self._shape[0])
        return chunk <= 4 * BLOCK_BYTES

    def read(self, axis: int, start: int, stop: int) -> np.ndarray:
        where = [slice(None)] * len(self._shape)
        where[self._axis_in_file(axis)] = slice(start, stop)
        with h5py.File(self.path, "r") as file:
            values = np.asarray(file[self.key][tuple(where)])
        return values.transpose() if self._reversed else values

    def blocks(self) -> Iterator[Block]:
        block = block_shape(self._shape, self.dtype.itemsize, self._chunks)
        with h5py.File(self.path, "r") as file:
            for where in block_slices(self._shape, block):
                values = np.asarray(file[self.key][where])
                yield (where[::-1], values.transpose()) if self._reversed else (where, values)


class Hdf5Seeds(Variable):
    """A dataset of the same name in the group of every sample, as one variable with the samples first."""

    def __init__(self, path: Path, key: str, file: h5py.File, seeds: list[str]) -> None:
        first = file[seeds[0]][key]
        self.path, self.key, self._seeds = path, key, seeds
        self.shape, self.dtype = (len(seeds), *first.shape), first.dtype
        self.stored_bytes = len(seeds) * first.id.get_storage_size()
        self.axes = {3: ("sample", "t", "x"), 4: ("sample", "t", "x", "c")}.get(
            len(self.shape), _PDEBENCH_AXES.get(len(self.shape))
        )

    def can_slice(self, axis: int) -> bool:
        return axis == 0

    def read(self, axis: int, start: int, stop: int) -> np.ndarray:
        assert axis == 0
        values = np.empty((stop - start, *self.shape[1:]), self.dtype)
        with h5py.File(self.path, "r") as file:
            for number, seed in enumerate(self._seeds[start:stop]):
                one = file[seed].get(self.key)
                if one is None or one.shape != self.shape[1:]:
                    found = "nothing" if one is None else f"shape {one.shape}"
                    raise ValueError(f"group {seed!r} holds {found} where {self._seeds[0]!r} holds {self.shape[1:]}")
                one.read_direct(values, dest_sel=np.s_[number])
        return values

    def blocks(self) -> Iterator[Block]:
        step = block_shape(self.shape, self.dtype.itemsize)[0]
        for start in range(0, len(self._seeds), step):
            stop = min(start + step, len(self._seeds))
            yield (slice(start, stop), *(slice(0, size) for size in self.shape[1:])), self.read(0, start, stop)
