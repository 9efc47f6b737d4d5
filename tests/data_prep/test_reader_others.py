"""Plain HDF5 with groups, complex numbers of MATLAB, NPY files side by side."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.io import loadmat, savemat

from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.conversion.splits import SplitRule
from geomano_hpc.data_prep.problems import own_problem
from geomano_hpc.data_prep.readers import open_variable, variable_names
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import DataError
from tests.support.raw_files import read_field
from tests.support.real_data import FOLDER, needs_real_data

FIELD = np.random.default_rng(0).standard_normal((5, 7, 6, 3))


def write(path: Path, key: str, values: np.ndarray) -> None:
    if path.suffix == ".npz":
        np.savez(path, **{key: values})  # type: ignore[arg-type]
    else:
        savemat(path, {key: values})


def test_complex_numbers_are_the_same_in_both_kinds_of_matlab_files(tmp_path: Path) -> None:
    values = FIELD[0] + 1j * FIELD[1]
    savemat(tmp_path / "v5.mat", {"psi": values, "single": values.astype("c8")}, do_compression=True)
    with h5py.File(tmp_path / "v73.mat", "w") as file:  # as MATLAB writes it: a pair of numbers, axes reversed
        pairs = np.zeros(values.shape[::-1], [("real", "f8"), ("imag", "f8")])
        pairs["real"], pairs["imag"] = values.real.transpose(), values.imag.transpose()
        file["psi"] = pairs
        file["psi"].attrs["MATLAB_class"] = np.bytes_("double")
    for name in ("v5.mat", "v73.mat"):
        assert np.array_equal(read_field(tmp_path / name, "psi"), values)
    assert np.array_equal(read_field(tmp_path / "v5.mat", "single"), values.astype("c8"))


@needs_real_data
@pytest.mark.parametrize("key", ["a_complex_matrix", "a_complex_3d_single_matrix", "a_complex_number", "a_unit64"])
def test_matlab_v7_and_v73_give_the_same_numbers_of_other_types(key: str) -> None:
    v7, v73 = (read_field(FOLDER / "matlab" / name, key) for name in ("v7.mat", "v73.mat"))
    assert v7.dtype == v73.dtype
    assert np.array_equal(v7, v73)
    assert np.array_equal(v7, loadmat(FOLDER / "matlab" / "v7.mat")[key])


def test_wrong_name_is_answered_by_the_closest_one(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file["group/sub/Density"], file["pressure"] = FIELD, FIELD
    for asked, meant in (("density", "group/sub/Density"), ("group/sub/densty", "group/sub/Density"), ("presure", "p")):
        with pytest.raises(DataError, match=rf"no variable '{asked}'; did you mean '{meant}"):
            open_variable(tmp_path / "raw.h5", asked)
    assert variable_names(tmp_path / "raw.h5") == ["group/sub/Density", "pressure"]
    assert np.array_equal(read_field(tmp_path / "raw.h5", "group/sub/Density"), FIELD)


def test_file_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    for number, name in enumerate(("raw.npz", "raw.mat")):
        write(tmp_path / name, f"first{number}", FIELD)
        assert variable_names(tmp_path / name)[-1] == f"first{number}"
        write(tmp_path / name, f"other{number}", FIELD + 1)
        assert np.array_equal(read_field(tmp_path / name, f"other{number}"), FIELD + 1)


@pytest.mark.parametrize("order", ["C", "F"])
def test_two_npy_files_are_input_and_target(tmp_path: Path, order: str) -> None:
    k, p = FIELD[..., 0], FIELD[..., 1]
    np.save(tmp_path / "coeff.npy", np.asarray(k, order=order))  # type: ignore[call-overload]
    np.save(tmp_path / "sol.npy", np.asarray(p, order=order).astype("f4"))  # type: ignore[call-overload]
    fields = [f"k={tmp_path}/coeff.npy"], [f"p={tmp_path}/sol.npy"]
    settings = own_problem("steady", "mine", *fields, [], SplitRule(train=3, test=2), spacing={"x": 0.5, "y": 2.0})
    convert([], settings, tmp_path / "store.zarr")
    store = open_store(tmp_path / "store.zarr")
    assert np.array_equal(store.read("input", slice(None))[..., 0], k.astype("f4"))
    assert np.array_equal(store.read("target", slice(None))[..., 0], p.astype("f4"))
    assert [axis.spacing for axis in store.card.axes] == [0.5, 2.0]
    assert [one.name for one in (*store.card.inputs, *store.card.targets)] == ["k", "p"]


def test_what_was_never_written_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file["whole"] = FIELD
        file.create_dataset("bare", FIELD.shape, "f8")
        file.create_dataset("parts", FIELD.shape, "f8", chunks=(1, 7, 6, 3))[:2] = FIELD[:2]
    for name, words in (("whole", ""), ("bare", "0 of its 1 parts"), ("parts", "2 of its 5 chunks")):
        caplog.clear()
        open_variable(tmp_path / "raw.h5", name).check_complete()
        assert (words in caplog.text) if words else not caplog.text


def test_virtual_data_set_without_its_files_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file["u"] = FIELD
    layout = h5py.VirtualLayout(FIELD.shape, "f8")
    layout[:] = h5py.VirtualSource("part.h5", "u", FIELD.shape)
    with h5py.File(tmp_path / "raw.h5", "w") as file:
        file.create_virtual_dataset("u", layout)
    assert np.array_equal(read_field(tmp_path / "raw.h5", "u"), FIELD)
    (tmp_path / "part.h5").unlink()
    with pytest.raises(DataError, match=r"it is made of other files, of which part\.h5 is missing"):
        open_variable(tmp_path / "raw.h5", "u")
