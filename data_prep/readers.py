"""Read fields from the files that people have: MATLAB v5/v7 and v7.3, HDF5, NPZ. Samples are the first axis."""

from pathlib import Path

import h5py
import numpy as np
from scipy.io import loadmat, whosmat

from geomano_hpc.errors import DataError


def read_field(path: Path, key: str) -> np.ndarray:
    """One variable of a file. The format is told by the content, not by the name."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        if h5py.is_hdf5(path):
            return _read_hdf5(path, key)
        if path.suffix == ".npz":
            return _read_npz(path, key)
        if path.suffix == ".mat":
            return _read_matlab(path, key)
    except DataError:
        raise
    except Exception as error:  # the libraries raise a dozen kinds of error on a damaged file
        raise DataError(
            f"{path}: {key!r} cannot be read ({type(error).__name__}: {error}); is the file complete?"
        ) from error
    raise DataError(f"{path}: not a MATLAB, HDF5 or NPZ file")


def _missing(path: Path, key: str, found: list[str]) -> DataError:
    return DataError(
        f"{path}: no variable {key!r}; found: {', '.join(sorted(found)) or 'none'} (see --input-key, --target-key)"
    )


def _read_hdf5(path: Path, key: str) -> np.ndarray:
    with h5py.File(path, "r") as file:
        if not isinstance(file.get(key), h5py.Dataset):
            raise _missing(path, key, [name for name, item in file.items() if isinstance(item, h5py.Dataset)])
        dataset = file[key]
        values = np.asarray(dataset[()])
        # MATLAB v7.3 is HDF5 with the axes reversed.
        return values.transpose() if "MATLAB_class" in dataset.attrs else values


def _read_npz(path: Path, key: str) -> np.ndarray:
    with np.load(path, allow_pickle=False) as archive:
        if key not in archive.files:
            raise _missing(path, key, archive.files)
        return np.asarray(archive[key])


def _read_matlab(path: Path, key: str) -> np.ndarray:
    names = [name for name, _, _ in whosmat(path)]
    if key not in names:
        raise _missing(path, key, names)
    return np.asarray(loadmat(path, variable_names=[key])[key])


def check_finite(field: np.ndarray, where: str) -> None:
    bad = np.flatnonzero(~np.isfinite(field).all(axis=tuple(range(1, field.ndim))))
    if bad.size:
        shown = ", ".join(map(str, bad[:8])) + (", ..." if bad.size > 8 else "")
        raise DataError(f"{where}: NaN or Inf in {bad.size} of {len(field)} samples (samples {shown})")
