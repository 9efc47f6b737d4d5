"""Zarr stores of other programs, as xarray writes them in both versions."""

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.conversion.splits import SplitRule
from geomano_hpc.data_prep.problems import own_problem
from geomano_hpc.data_prep.readers import file_attributes, format_name, open_variable, variable_names
from geomano_hpc.data_prep.store import Store, open_store
from geomano_hpc.errors import DataError
from tests.support.raw_files import read_field

N, T, H, W = 6, 5, 4, 7
DIMENSIONS = ("sample", "time", "y", "x")

pytestmark = pytest.mark.filterwarnings("ignore")


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def dataset(**variables: Any) -> xarray.Dataset:
    points = {"x": ("x", np.arange(W) * 0.5), "y": ("y", np.arange(H) * 0.25 + 1), "time": ("time", np.arange(T) * 0.1)}
    return xarray.Dataset(variables, coords=points, attrs={"nu": 0.25})


def written(path: Path, content: xarray.Dataset, version: Any = 3, **more: Any) -> Path:
    content.to_zarr(path, zarr_format=version, consolidated=False, **more)
    return path


def rolled(path: Path, out: Path, constants: tuple[str, ...] = (), field: str = "u") -> Store:
    split = SplitRule(train=4, test=2)
    settings = own_problem("rollout", "mine", [], [field], list(constants), split, frames_in=1, frames_out=2)
    convert([path], settings, out)
    return open_store(out)


@pytest.mark.parametrize("version", [2, 3])
def test_store_of_xarray_is_converted(tmp_path: Path, version: int) -> None:
    u = random(N, T, H, W)
    content = dataset(u=(DIMENSIONS, u, {"units": "m/s"}), re=("sample", np.arange(N) / 2))
    path = written(tmp_path / "raw.zarr", content, version, encoding={"u": {"chunks": (2, 3, 4, 4)}})
    assert format_name(path) == f"Zarr, version {version}"
    assert file_attributes(path) == {"nu": 0.25}
    assert sorted(variable_names(path)) == ["re", "u"]
    one = open_variable(path, "u")
    assert (one.axes, one.units) == (("sample", "t", "y", "x"), "m/s")
    assert np.array_equal(read_field(path, "u"), u)
    store = rolled(path, tmp_path / "store.zarr", ("re", "@nu"))
    assert np.array_equal(store.read("frames", slice(None)).reshape(N, T, W, H), u.transpose(0, 1, 3, 2))
    assert [(axis.name, axis.start, axis.spacing) for axis in store.card.axes] == [("x", 0.0, 0.5), ("y", 1.0, 0.25)]
    assert store.card.time["step"] == pytest.approx(0.1)
    constants = store.constants()
    assert constants is not None
    assert np.array_equal(constants, np.stack([np.arange(N) / 2, np.full(N, 0.25)], axis=1))


@pytest.mark.parametrize("version", [2, 3])
def test_packed_and_missing_values_are_read_as_xarray_reads_them(tmp_path: Path, version: int) -> None:
    u = random(N, T, H, W)
    u[2, 0, 0, 0] = np.nan
    packing = {"dtype": "i2", "scale_factor": 0.001, "add_offset": 1.0, "_FillValue": -32768}
    path = written(tmp_path / "raw.zarr", dataset(u=(DIMENSIONS, u)), version, encoding={"u": packing})
    expected = xarray.open_zarr(path, consolidated=False)["u"].values
    found = read_field(path, "u")
    assert np.isnan(found[2, 0, 0, 0])
    assert np.allclose(found, expected, atol=1e-6, equal_nan=True)
    with pytest.raises(DataError, match=r"'u': NaN or Inf in 1 samples \(samples 2\)"):
        rolled(path, tmp_path / "store.zarr")


@pytest.mark.parametrize("version", [2, 3])
def test_missing_chunk_is_warned_of_once(tmp_path: Path, version: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It reads as the fill value: NaN is refused, and of a number only the warning tells."""
    path = tmp_path / "raw.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=version)
    names = {"dimension_names": DIMENSIONS} if version == 3 else {"attributes": {"_ARRAY_DIMENSIONS": DIMENSIONS}}
    for name, fill in (("u", 7.0), ("v", np.nan)):
        array = group.create_array(name, shape=(N, T, H, W), chunks=(1, T, H, W), dtype="f4", fill_value=fill, **names)
        array[:] = random(N, T, H, W)
        lost = path / name / ("c/3" if version == 3 else "3.0.0.0")
        shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
    caplog.set_level(logging.WARNING)
    with pytest.raises(DataError, match=r"'v': NaN or Inf in 1 samples \(samples 3\)"):
        rolled(path, tmp_path / "nan.zarr", field="v")
    caplog.clear()
    if version == 2:  # there, the fill value of a store of xarray marks missing values
        with pytest.raises(DataError, match=r"'u': NaN or Inf in 1 samples \(samples 3\)"):
            rolled(path, tmp_path / "store.zarr")
    else:
        store = rolled(path, tmp_path / "store.zarr")
        assert (store.read("frames", slice(3 * T, 4 * T)) == 7).all()
    assert sum("has 5 of its 6 chunks" in record.message for record in caplog.records) == 1


def test_groups_and_single_arrays(tmp_path: Path) -> None:
    u = random(N, T, H, W)
    path = written(tmp_path / "raw.zarr", dataset(u=(DIMENSIONS, u)), group="run/first")
    assert variable_names(path) == ["run/first/u"]
    assert open_variable(path, "run/first/u").coordinates["x"].spacing == 0.5
    store = rolled(path, tmp_path / "store.zarr", field="run/first/u")
    assert np.array_equal(store.read("frames", slice(None)).reshape(N, T, W, H), u.transpose(0, 1, 3, 2))
    zarr.create_array(tmp_path / "single.zarr", data=u)
    assert variable_names(tmp_path / "single.zarr") == ["single"]
    assert np.array_equal(read_field(tmp_path / "single.zarr", "single"), u)
    for name in ("run", "run/first", "run/first/w", "/"):
        with pytest.raises(DataError, match="no variable"):
            open_variable(path, name)
    with pytest.raises(DataError, match="did you mean 'run/first/u'"):
        open_variable(path, "run/frst/u")


def test_folder_that_is_no_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder and no Zarr store"):
        variable_names(tmp_path)
