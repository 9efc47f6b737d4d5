"""Every format gives the same arrays, whole and piece by piece, and what is wrong with a file is named."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy.io import loadmat, savemat

from geomano_hpc.data_prep.readers import open_variable, variable_names
from geomano_hpc.data_prep.readers import variable as variable_module
from geomano_hpc.data_prep.readers.variable import block_shape, block_slices
from geomano_hpc.errors import DataError
from tests.support.raw_files import read_field
from tests.support.real_data import FOLDER, needs_real_data

FIELD = np.random.default_rng(0).standard_normal((5, 7, 6, 3))
FORMATS = [
    "v5.mat",
    "v5_plain.mat",
    "v73.mat",
    "v73_chunked.mat",
    "plain.h5",
    "chunked.h5",
    "c.npz",
    "f.npz",
    "big.mat",
]


def write(path: Path, field: np.ndarray, key: str = "coeff") -> Path:
    if path.name in ("v5.mat", "v5_plain.mat"):
        savemat(path, {"Kcoeff": 1.0, key: field, "note": "text"}, do_compression=path.name == "v5.mat")
    elif path.name == "big.mat":
        path.write_bytes(big_endian_matlab(key, field))
    elif path.suffix == ".npz":
        np.savez_compressed(path, **{key: np.asfortranarray(field) if path.name == "f.npz" else field})  # type: ignore[arg-type]
    else:
        reverse = path.name.startswith("v73")
        chunks = tuple(max(1, size // 2) for size in field.shape[:: -1 if reverse else 1])
        with h5py.File(path, "w") as h5:
            dataset = h5.create_dataset(
                key, data=field.transpose() if reverse else field, chunks=chunks if "chunked" in path.name else None
            )
            if reverse:
                dataset.attrs["MATLAB_class"] = np.bytes_("double")
    return path


def big_endian_matlab(key: str, field: np.ndarray, kind: int = 9, stored: str = ">f8") -> bytes:
    """A file as MATLAB wrote it on machines of the other byte order."""

    def element(number: int, content: bytes) -> bytes:
        return np.array([number, len(content)], ">u4").tobytes() + content + b"\0" * (-len(content) % 8)

    content = (
        element(6, np.array([6, 0], ">u4").tobytes())
        + element(5, np.array(field.shape, ">i4").tobytes())
        + element(1, key.encode())
        + element(kind, field.astype(stored).tobytes(order="F"))
    )
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\x01\x00MI" + element(14, content)


@pytest.fixture(params=FORMATS)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path / request.param, FIELD)


def test_every_format_gives_the_same_field(file: Path) -> None:
    assert np.array_equal(read_field(file, "coeff"), FIELD)


def test_blocks_and_ranges_are_pieces_of_the_field(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variable_module, "BLOCK_BYTES", 8 * 40)
    variable = open_variable(file, "coeff")
    assert (variable.shape, variable.dtype) == (FIELD.shape, np.dtype("f8"))
    seen = np.zeros(FIELD.shape, int)
    blocks = 0
    for where, block in variable.blocks():
        assert np.array_equal(block, FIELD[where])
        seen[where] += 1
        blocks += 1
    assert (seen == 1).all()
    assert blocks > 4
    for axis in range(4):
        expected = np.take(FIELD, range(1, 3), axis)
        assert np.array_equal(variable.read(axis, 1, 3), expected)


def test_missing_variable_names_file_and_what_is_there(file: Path) -> None:
    with pytest.raises(DataError, match=rf"{file.name}: no variable 'sol'; found:.*coeff"):
        read_field(file, "sol")


@pytest.mark.parametrize("kept", [0.01, 0.5, 0.7, 0.95])
def test_truncated_file_is_named(file: Path, kept: float) -> None:
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * kept)])
    with pytest.raises(DataError, match=file.name):
        read_field(file, "coeff")


@pytest.mark.parametrize("name", ["v5.mat", "c.npz"])
def test_flipped_bit_in_a_compressed_file_is_an_error(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, np.round(FIELD, 1))
    content = bytearray(path.read_bytes())
    content[-len(content) // 2] ^= 4
    path.write_bytes(content)
    with pytest.raises(DataError, match=name):
        read_field(path, "coeff")


@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_is_read_by_the_name_of_the_file(tmp_path: Path, order: str) -> None:
    np.save(tmp_path / "velocity.npy", np.asarray(FIELD, order=order))  # type: ignore[call-overload]
    assert variable_names(tmp_path / "velocity.npy") == ["velocity"]
    variable = open_variable(tmp_path / "velocity.npy", "velocity")
    assert variable.can_slice(0) == (order == "C")
    assert np.array_equal(variable.read(0, 2, 4), FIELD[2:4])
    assert np.array_equal(read_field(tmp_path / "velocity.npy", "velocity"), FIELD)


@pytest.mark.parametrize("dtype", ["f4", "u1", "i2", "i8", "?"])
@pytest.mark.parametrize("name", ["v5.mat", "chunked.h5", "c.npz"])
def test_types_are_kept(tmp_path: Path, name: str, dtype: str) -> None:
    values = (FIELD * 10).astype(dtype)
    assert np.array_equal(read_field(write(tmp_path / name, values), "coeff"), values)


def test_small_values_inside_a_tag_and_values_in_a_smaller_type(tmp_path: Path) -> None:
    """MATLAB keeps up to four bytes in the tag, and whole numbers in the smallest type that holds them."""
    savemat(tmp_path / "tiny.mat", {"u": np.array([[1, 2, 3]], "u1")})
    assert read_field(tmp_path / "tiny.mat", "u").tolist() == [[1, 2, 3]]
    values = np.arange(8.0).reshape(2, 4)
    (tmp_path / "small.mat").write_bytes(big_endian_matlab("u", values, 2, "u1"))
    found = read_field(tmp_path / "small.mat", "u")
    assert found.dtype == np.float64
    assert np.array_equal(found, values)


@pytest.mark.parametrize(
    ("content", "found"),
    [({"u": "text"}, "found text"), ({"u": {"a": 1}}, "found a struct")],
)
def test_what_is_not_an_array_of_numbers_is_named(tmp_path: Path, content: dict[str, object], found: str) -> None:
    savemat(tmp_path / "odd.mat", content)
    with pytest.raises(DataError, match=rf"odd.mat: 'u' cannot be read .*{found}"):
        read_field(tmp_path / "odd.mat", "u")


def test_objects_and_text_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", u=np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"odd.npz: 'u' cannot be read"):
        read_field(tmp_path / "odd.npz", "u")
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        file["u"] = ["a", "b"]
    with pytest.raises(DataError, match="expected numbers, found values of type"):
        read_field(tmp_path / "odd.h5", "u")


def test_blocks_follow_the_file_and_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variable_module, "BLOCK_BYTES", 8 * 100)
    assert block_shape((50, 30, 10), 8) == [1, 10, 10]  # what lies together
    assert block_shape((50, 30, 10), 8, (4, 5, 5)) == [4, 5, 5]  # a chunk is never cut
    assert block_shape((50, 4, 10), 8, (1, 2, 10)) == [2, 4, 10]
    assert [s[0].start for s in block_slices((5,), (2,))] == [0, 2, 4]


def test_pdebench_groups_of_samples_are_one_variable(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "swe.h5", "w") as file:
        for seed in range(12):
            file[f"{seed:04}/data"] = FIELD[0] + seed
    assert variable_names(tmp_path / "swe.h5") == ["data"]
    variable = open_variable(tmp_path / "swe.h5", "data")
    assert variable.shape == (12, *FIELD.shape[1:])
    assert np.array_equal(variable.read(0, 10, 12), np.stack([FIELD[0] + 10, FIELD[0] + 11]))
    assert np.array_equal(read_field(tmp_path / "swe.h5", "data")[3], FIELD[0] + 3)
    with h5py.File(tmp_path / "swe.h5", "r+") as file:
        del file["0007/data"]
        file["0007/data"] = FIELD[0, 1:]
    with pytest.raises(DataError, match=r"swe.h5: 'data' cannot be read .*group '0007' holds shape"):
        read_field(tmp_path / "swe.h5", "data")


@needs_real_data
def test_matlab_v7_and_v73_give_the_same_array() -> None:
    v7, v73 = (read_field(FOLDER / "matlab" / name, "a_matrix") for name in ("v7.mat", "v73.mat"))
    assert v7.shape == (100, 100)
    assert np.array_equal(v7, v73)


@needs_real_data
@pytest.mark.parametrize("name", ["darcy_r421_N4.mat", "ns_V1e-5_N2_T20_s256to64.mat"])
def test_files_of_the_fno_authors_are_read_as_scipy_reads_them(name: str) -> None:
    path = FOLDER / "fno_generator" / name
    expected = {key: value for key, value in loadmat(path).items() if not key.startswith("__")}
    assert variable_names(path) == list(expected)
    for key, values in expected.items():
        found = read_field(path, key)
        assert found.dtype == values.dtype
        assert np.array_equal(found, values)


def test_missing_file_and_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_field(tmp_path / "nothing.mat", "u")
    (tmp_path / "notes.txt").write_text("u")
    with pytest.raises(DataError, match=r"notes.txt: not a MATLAB .*HDF5, NetCDF-4, Zarr, NPY, NPZ or .pt file"):
        read_field(tmp_path / "notes.txt", "u")
