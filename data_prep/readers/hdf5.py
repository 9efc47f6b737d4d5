"""HDF5 and its dialects: plain files, MATLAB v7.3 with its axes reversed, PDEBench, The Well, NetCDF-4.

A data set is called by its path in the file, `group/name`. Links that lead out of the file are not followed.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from geomano_hpc.data_prep.readers import netcdf, pdebench, the_well
from geomano_hpc.data_prep.readers.chunked import Chunked, Decoding
from geomano_hpc.data_prep.readers.dimensions import NETCDF_FILL, packing_of
from geomano_hpc.data_prep.readers.netcdf import within
from geomano_hpc.data_prep.readers.text import plain, plain_attributes
from geomano_hpc.data_prep.readers.variable import (
    Block,
    Constant,
    Layout,
    Variable,
    block_shape,
)

logger = logging.getLogger(__name__)

_NOT_NUMBERS = ("char", "cell", "struct", "function_handle", "string", "table", "datetime")  # classes of MATLAB


def names(path: Path) -> list[str]:
    """Of what may be a field; the points of axes are left out."""
    with h5py.File(path, "r") as file:
        seeds = _seeds(file)
        found = [name for name, dataset in _datasets(file, "", set(seeds)) if not _is_points(file, name, dataset)]
        if seeds:
            found += [name for name, _ in _datasets(file[seeds[0]], "", {"grid"})]
        return found


def attributes(path: Path) -> dict[str, Any]:
    """Without those of single samples, such as PDEBench's 0000/config."""
    with h5py.File(path, "r") as file:
        names = [name for name in file.attrs if not name.partition("/")[0].isdigit()]
        return plain_attributes((name, file.attrs[name]) for name in names)


def format_name(path: Path) -> str:
    with h5py.File(path, "r") as file:
        if the_well.is_well(file):
            return "The Well (HDF5)"
        if _seeds(file):
            return f"HDF5 with a group for each of {len(_seeds(file))} samples, as in PDEBench"
        if pdebench.is_pdebench(file):
            return "PDEBench (HDF5)"
        first = next((dataset for _, dataset in _datasets(file, "", set())), None)
        if first is not None and "MATLAB_class" in first.attrs:
            return "MATLAB v7.3 (HDF5)"
        if "_NCProperties" in file.attrs or (first is not None and netcdf.is_netcdf(file, first)):
            return "NetCDF-4 (HDF5)"
        return "HDF5"


def variable(path: Path, key: str) -> Variable:
    """KeyError where there is none of that name. `@name` is an attribute of the file."""
    with h5py.File(path, "r") as file:
        if key.startswith("@"):
            return Constant(path, key, np.asarray(file.attrs[key[1:]]))
        if the_well.is_well(file) and key not in file:
            key = the_well.full_name(file, key) or key
        if isinstance(within(file, key), h5py.Dataset):
            return Hdf5Variable(path, key, file)
        seeds = _seeds(file)
        if seeds and isinstance(within(file[seeds[0]], key), h5py.Dataset):
            return Hdf5Seeds(path, key, file, seeds)
    raise KeyError(key)


def _datasets(
    group: h5py.Group, before: str, without: set[str], seen: set[int] | None = None
) -> Iterator[tuple[str, h5py.Dataset]]:
    """All data sets below a group, by path. A group that stands in several places is entered once."""
    seen = set() if seen is None else seen
    for name in group:
        if name in without or name.startswith("#"):  # where MATLAB keeps what is not a variable
            continue
        found = within(group, name)
        if isinstance(found, h5py.Dataset):
            yield before + name, found
        elif isinstance(found, h5py.Group):
            address = h5py.h5o.get_info(found.id).addr
            if address not in seen:
                yield from _datasets(found, f"{before}{name}/", set(), {*seen, address})


def _is_points(file: h5py.File, name: str, dataset: h5py.Dataset) -> bool:
    """Whether it is no field: the points of an axis, or what describes the grid."""
    if the_well.is_well(file):
        return name.partition("/")[0] in the_well.HIDDEN
    if dataset.attrs.get("CLASS") is not None and plain(dataset.attrs["CLASS"]) == "DIMENSION_SCALE":
        return True
    return pdebench.is_pdebench(file) and pdebench.is_points(name)


def _seeds(file: h5py.File) -> list[str]:
    """PDEBench's other layout: a group for each sample, 0000/data, 0001/data, ..."""
    found = sorted((name for name in file if name.isdigit()), key=int)
    return found if found and isinstance(within(file, found[0]), h5py.Group) else []


class Hdf5Variable(Chunked):
    """A data set. MATLAB v7.3 writes the first axis as the last, so that the samples lie apart in the file."""

    def __init__(self, path: Path, key: str, file: h5py.File) -> None:
        dataset = file[key]
        self.path, self.key = path, key
        if dataset.shape is None:
            raise ValueError("it holds nothing")
        matlab = plain(dataset.attrs.get("MATLAB_class", ""))
        if matlab in _NOT_NUMBERS or "MATLAB_empty" in dataset.attrs:
            raise ValueError(
                "it is empty" if "MATLAB_empty" in dataset.attrs else f"expected numbers, found a {matlab}"
            )
        _check_sources(path, dataset)
        self.attributes = plain_attributes(dataset.attrs.items())
        self.stored_bytes = dataset.id.get_storage_size()
        is_netcdf = netcdf.is_netcdf(file, dataset)
        self.describe(
            dataset.shape,
            dataset.dtype,
            dataset.chunks,
            _layout(file, key, dataset),
            reverse=bool(matlab),
            decoding=_decoding(dataset, self.attributes, is_netcdf),
        )

    @contextmanager
    def _opened(self) -> Iterator[h5py.Dataset]:
        with h5py.File(self.path, "r") as file:
            yield file[self.key]

    def check_complete(self) -> None:
        """What was never written reads as the fill value, mostly 0, such as the rest of a run that was killed."""
        with self._opened() as dataset:
            if dataset.is_virtual or not dataset.size or dataset.external:
                return
            there, all_of_them = int(dataset.id.get_storage_size() > 0), 1
            if dataset.chunks is not None:
                sizes = zip(dataset.shape, dataset.chunks, strict=True)
                there, all_of_them = dataset.id.get_num_chunks(), math.prod(-(-size // part) for size, part in sizes)
            if there < all_of_them:
                logger.warning(
                    "%s: %r has %d of its %d %s; the others were never written and are read as its fill value, %s",
                    self.path,
                    self.key,
                    there,
                    all_of_them,
                    "chunks" if dataset.chunks else "parts",
                    dataset.fillvalue,
                )


def _check_sources(path: Path, dataset: h5py.Dataset) -> None:
    """A virtual data set reads as 0 where a file that it is made of is missing."""
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        name = source.file_name
        if name != "." and "%" not in name and not (path.parent / name).exists() and not Path(name).exists():
            raise ValueError(f"it is made of other files, of which {name} is missing")


def _decoding(dataset: h5py.Dataset, attributes: dict[str, Any], is_netcdf: bool) -> tuple[np.dtype, Decoding] | None:
    """Of complex numbers of MATLAB, and of packed numbers, which have the attributes of NetCDF in any file."""
    stored = dataset.dtype
    if stored.names is not None and set(stored.names) == {"real", "imag"}:
        dtype = np.result_type(stored["real"], np.complex64)
        return dtype, lambda values: values["real"].astype(dtype) + dtype.type(1j) * values["imag"]
    packing = packing_of(attributes, stored, NETCDF_FILL if is_netcdf and stored.kind == "f" else None)
    return None if packing is None else (packing.dtype, packing)


def _layout(file: h5py.File, key: str, dataset: h5py.Dataset) -> Layout:
    if "MATLAB_class" in dataset.attrs:
        return Layout()
    if the_well.is_well(file):
        return the_well.layout_of(file, key)
    if pdebench.is_pdebench(file):
        return pdebench.layout_of(file, key)
    return netcdf.layout_of(dataset)


class Hdf5Seeds(Variable):
    """A data set of the same name in the group of every sample, as one variable with the samples first."""

    def __init__(self, path: Path, key: str, file: h5py.File, seeds: list[str]) -> None:
        first = file[seeds[0]][key]
        self.path, self.key, self._seeds = path, key, seeds
        self.shape, self.dtype = (len(seeds), *first.shape), first.dtype
        self.stored_bytes = len(seeds) * first.id.get_storage_size()
        self.attributes = plain_attributes(first.attrs.items())
        self.say(pdebench.seed_layout(file[seeds[0]], self.shape))

    def can_slice(self, axis: int) -> bool:
        return axis == 0

    def can_cut(self, axis: int, sliced: Sequence[int]) -> bool:
        return axis == len(sliced)

    def read(self, axis: int, start: int, stop: int) -> np.ndarray:
        assert axis == 0
        return self.part((slice(start, stop), *(slice(0, size) for size in self.shape[1:])))

    def part(self, where: Sequence[slice]) -> np.ndarray:
        seeds = self._seeds[where[0]]
        shape = (len(seeds), *(len(range(size)[cut]) for size, cut in zip(self.shape[1:], where[1:], strict=True)))
        values = np.empty(shape, self.dtype)
        with self._opened() as file:
            for number, seed in enumerate(seeds):
                one = file[seed].get(self.key)
                if one is None or one.shape != self.shape[1:]:
                    found = "nothing" if one is None else f"shape {one.shape}"
                    raise ValueError(f"group {seed!r} holds {found} where {self._seeds[0]!r} holds {self.shape[1:]}")
                values[number] = one[tuple(where[1:])]
        return values

    def blocks(self) -> Iterator[Block]:
        step = block_shape(self.shape, self.dtype.itemsize)[0]
        for start in range(0, len(self._seeds), step):
            stop = min(start + step, len(self._seeds))
            yield (slice(start, stop), *(slice(0, size) for size in self.shape[1:])), self.read(0, start, stop)

    def _opened(self) -> AbstractContextManager[h5py.File]:
        return h5py.File(self.path, "r")
