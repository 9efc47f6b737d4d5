"""Read fields from the files that people have, piece by piece: HDF5 and its dialects, MATLAB, Zarr, NPY, NPZ, .pt.

The format is told by the content, not by the name. docs/converting.md lists what each of them is expected to hold.
"""

import contextlib
import difflib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import h5py

from geomano_hpc.data_prep.readers import hdf5, matlab, npy, pt, zarr_store
from geomano_hpc.data_prep.readers.remembered import remembered
from geomano_hpc.data_prep.readers.variable import Block, Variable
from geomano_hpc.errors import DataError

_NPY = SimpleNamespace(names=npy.npy_names, variable=npy.npy_variable, format_name=lambda path: "NPY")
_NPZ = SimpleNamespace(names=npy.npz_names, variable=npy.npz_variable, format_name=lambda path: "NPZ")
_MOST_NAMES = 12


def variable_names(path: Path) -> list[str]:
    """Of what may be a field; the points of axes are left out where the format says which those are."""
    if not path.exists():
        raise DataError(f"{path}: no such file")
    with reading(path, "its list of variables"):
        return list(_format(path).names(path))


def format_name(path: Path) -> str:
    """In words: HDF5, PDEBench, The Well, NetCDF-4, MATLAB v5, v7 or v7.3, Zarr 2 or 3, NPY, NPZ, .pt."""
    if not path.exists():
        raise DataError(f"{path}: no such file")
    with reading(path, "its format"):
        return str(_format(path).format_name(path))


def file_attributes(path: Path) -> dict[str, Any]:
    """Of the file as a whole: numbers, text, and lists of them."""
    with reading(path, "its attributes"):
        found = getattr(_format(path), "attributes", None)
        return {} if found is None else dict(found(path))


def open_variable(path: Path, key: str) -> Variable:
    """A variable of a file: its shape and type now, its values when they are asked for."""
    if not path.exists():
        raise DataError(f"{path}: no such file")
    with reading(path, "its list of variables"):
        there = _format(path)
        # The dialects of HDF5 and Zarr have more that can be opened than what may be a field.
        if there not in (hdf5, zarr_store) and key not in _listed(path):
            raise _no_variable(path, key)
    with reading(path, repr(key)):
        try:
            variable: Variable = there.variable(path, key)
        except KeyError:
            full = _by_short_name(path, key)
            if full is None:
                raise _no_variable(path, key) from None
            variable = there.variable(path, full)
        if variable.dtype.kind not in "fiubc":
            raise ValueError(f"expected numbers, found values of type {variable.dtype}")
    return variable


@remembered
def _listed(path: Path) -> frozenset[str]:
    return frozenset(_format(path).names(path))


def has_no_names(path: Path) -> bool:
    """Whether the file holds one array without a name of its own."""
    return path.is_file() and format_name(path) == "NPY"


def _by_short_name(path: Path, key: str) -> str | None:
    """`u` means `fields/u` where nothing else is called so."""
    found = [] if key.startswith("@") else [name for name in variable_names(path) if name.rpartition("/")[2] == key]
    return found[0] if len(found) == 1 else None


def _no_variable(path: Path, key: str) -> DataError:
    if key.startswith("@"):
        known = ", ".join(f"@{name}" for name in file_attributes(path))
        return DataError(f"{path}: no attribute {key}; found: {known or 'none'}")
    found = sorted(variable_names(path))
    by_word = {word.lower(): name for name in found for word in (name.rpartition("/")[2], name)}
    close = [by_word[word] for word in difflib.get_close_matches(key.lower(), by_word, n=1)]
    shown = ", ".join(found[:_MOST_NAMES]) + (
        f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    )
    meant = f"; did you mean {close[0]!r}?" if close else ""
    return DataError(
        f"{path}: no variable {key!r}{meant}; found: {shown or 'none'} (see --input and --target, or --field of a "
        "rollout)"
    )


def readable_blocks(variable: Variable) -> Iterator[Block]:
    """The blocks of a variable. An error in reading them names file and variable; one in using them is not touched."""
    with reading(variable.path, repr(variable.key)):
        yield from variable.blocks()


@contextlib.contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """The libraries raise a dozen kinds of error on a damaged file: one line that names the file and the variable."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{path}: {what} cannot be read ({type(error).__name__}: {error}); is the file complete?"
        ) from error


def _format(path: Path) -> ModuleType | SimpleNamespace:
    if path.is_dir():
        if zarr_store.is_zarr(path):
            return zarr_store
        raise DataError(f"{path}: is a folder and no Zarr store; give files, or stores")
    return _format_of_file(path)


@remembered
def _format_of_file(path: Path) -> ModuleType | SimpleNamespace:
    if h5py.is_hdf5(path):
        return hdf5
    if matlab.is_matlab(path):
        return matlab
    if pt.is_torch(path):
        return pt
    if zipfile.is_zipfile(path):
        return _NPZ
    with path.open("rb") as file:
        begin = file.read(6)
    if begin == b"\x93NUMPY":
        return _NPY
    if begin[:4] in (b"CDF\x01", b"CDF\x02", b"CDF\x05"):
        raise DataError(f"{path}: is NetCDF of before version 4; make it NetCDF-4 first: nccopy -k nc4 {path} NEW.nc")
    raise DataError(
        f"{path}: not a MATLAB (v5, v7, v7.3), HDF5, NetCDF-4, Zarr, NPY, NPZ or .pt file, or cut off (a .pt older "
        "than torch 1.6: load it and save it again)"
    )
