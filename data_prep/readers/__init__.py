"""Read fields from the files that people have, piece by piece: MATLAB v5/v7 and v7.3, HDF5, PDEBench, NPY, NPZ, .pt.

The format is told by the content, not by the name. docs/converting.md lists what each of them is expected to hold.
"""

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import h5py

from geomano_hpc.data_prep.readers import hdf5, matlab, npy, pt
from geomano_hpc.data_prep.readers.variable import Block, Variable
from geomano_hpc.errors import DataError

_NPY = SimpleNamespace(names=npy.npy_names, variable=npy.npy_variable)
_NPZ = SimpleNamespace(names=npy.npz_names, variable=npy.npz_variable)


def variable_names(path: Path) -> list[str]:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    with reading(path, "its list of variables"):
        return list(_format(path).names(path))


def open_variable(path: Path, key: str) -> Variable:
    """A variable of a file: its shape and type now, its values when they are asked for."""
    found = variable_names(path)
    if key not in found:
        raise DataError(
            f"{path}: no variable {key!r}; found: {', '.join(sorted(found)) or 'none'} (see --input-key, --target-key)"
        )
    with reading(path, repr(key)):
        variable: Variable = _format(path).variable(path, key)
        if variable.dtype.kind not in "fiub":
            raise ValueError(f"expected real numbers, found values of type {variable.dtype}")
    return variable


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
    if h5py.is_hdf5(path):
        return hdf5
    if matlab.is_matlab(path):
        return matlab
    if pt.is_torch(path):
        return pt
    if zipfile.is_zipfile(path):
        return _NPZ
    with path.open("rb") as file:
        if file.read(6) == b"\x93NUMPY":
            return _NPY
    raise DataError(
        f"{path}: not a MATLAB (v5, v7, v7.3), HDF5, NPY, NPZ or .pt file, or cut off (a .pt older than torch 1.6: "
        "load it and save it again)"
    )
