from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.io import savemat

from geomano_hpc.data_prep.readers import read_field
from geomano_hpc.errors import DataError
from tests.real_data import FOLDER, needs_real_data

FIELD = np.arange(24.0).reshape(4, 3, 2)


@pytest.fixture(params=["v5.mat", "v5_uncompressed.mat", "v73.mat", "plain.h5", "archive.npz"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    if path.name.startswith("v5"):
        savemat(path, {"coeff": FIELD, "Kcoeff": 1.0}, do_compression=path.name == "v5.mat")
    elif path.name == "archive.npz":
        np.savez(path, coeff=FIELD)
    else:
        with h5py.File(path, "w") as h5:
            h5["coeff"] = FIELD.transpose() if path.name == "v73.mat" else FIELD
            if path.name == "v73.mat":
                h5["coeff"].attrs["MATLAB_class"] = np.bytes_("double")
    return path


def test_every_format_gives_the_same_field(file: Path) -> None:
    assert np.array_equal(read_field(file, "coeff"), FIELD)


def test_missing_variable_names_file_and_what_is_there(file: Path) -> None:
    with pytest.raises(DataError, match=rf"{file.name}: no variable 'sol'; found:.*coeff"):
        read_field(file, "sol")


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.7, 0.95])
def test_truncated_file_is_named(file: Path, kept: float) -> None:
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * kept)])
    with pytest.raises(DataError, match=file.name):
        read_field(file, "coeff")


@needs_real_data
def test_matlab_v7_and_v73_give_the_same_array() -> None:
    v7, v73 = (read_field(FOLDER / "matlab" / name, "a_matrix") for name in ("v7.mat", "v73.mat"))
    assert v7.shape == (100, 100)
    assert np.array_equal(v7, v73)


def test_missing_file_and_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_field(tmp_path / "nothing.mat", "u")
    (tmp_path / "notes.txt").write_text("u")
    with pytest.raises(DataError, match="not a MATLAB, HDF5 or NPZ file"):
        read_field(tmp_path / "notes.txt", "u")
