"""NetCDF-4 files as xarray writes them: axes by the names of dimensions, numbers unpacked."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray

from geomano_hpc.data_prep.convert import convert
from geomano_hpc.data_prep.problems import own_problem
from geomano_hpc.data_prep.readers import open_variable, variable_names
from geomano_hpc.data_prep.splits import SplitRule
from geomano_hpc.data_prep.store import Store, open_store
from geomano_hpc.errors import DataError
from tests.support.raw_files import read_field

N, T, H, W = 6, 5, 4, 7  # member, time, lat, lon
DIMENSIONS = ("member", "time", "lat", "lon")


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def dataset(lat: Any = None, **variables: Any) -> xarray.Dataset:
    return xarray.Dataset(
        variables,
        coords={
            "member": np.arange(N),
            "time": ("time", np.arange(T) * 6, {"units": "hours"}),
            "lat": ("lat", np.arange(H) * 2.0 - 3 if lat is None else lat, {"units": "degrees_north"}),
            "lon": ("lon", np.arange(W) * 2.5, {"units": "degrees_east"}),
        },
        attrs={"title": "example", "nu": 0.01},
    )


def written(path: Path, content: xarray.Dataset, **more: Any) -> Path:
    content.to_netcdf(path, engine="h5netcdf", **more)
    return path


def rolled(path: Path, fields: list[str], inputs: tuple[str, ...] = (), constants: tuple[str, ...] = ()) -> Store:
    split = SplitRule(train=4, test=2)
    settings = own_problem("rollout", "mine", list(inputs), fields, list(constants), split, frames_in=1, frames_out=2)
    convert([path], settings, path.with_suffix(".zarr"))
    return open_store(path.with_suffix(".zarr"))


def test_dimensions_coordinates_and_units_reach_the_card(tmp_path: Path) -> None:
    u, v, mask, re = random(N, T, H, W), random(N, T, H, W, seed=1), random(H, W, seed=2), random(N, seed=3)
    content = dataset(
        u=(DIMENSIONS, u, {"units": "m s-1"}), v=(DIMENSIONS, v), mask=(DIMENSIONS[2:], mask), re=("member", re)
    )
    path = written(tmp_path / "wake.nc", content, unlimited_dims=["time"])
    assert sorted(variable_names(path)) == ["mask", "re", "u", "v"]
    store = rolled(path, ["u", "v"], ("mask",), ("re", "@nu"))
    found = store.read("frames", slice(None)).reshape(N, T, W, H, 2)
    for number, raw in enumerate((u, v)):
        assert np.array_equal(found[..., number], raw.transpose(0, 1, 3, 2))  # x is the longitude, and stands first
    assert np.array_equal(store.read("static", slice(None))[0, ..., 0], mask.T)
    card = store.card
    assert [(axis.name, axis.points, axis.start, axis.spacing, axis.units) for axis in card.axes] == [
        ("x", W, 0.0, 2.5, "degrees_east"),
        ("y", H, -3.0, 2.0, "degrees_north"),
    ]
    assert card.time == {"step": 6.0, "units": "hours"}
    assert [one.units for one in card.targets] == ["m s-1", ""]
    constants = store.constants()
    assert constants is not None
    assert np.array_equal(constants, np.stack([re, np.full(N, 0.01, np.float32)], axis=1))


@pytest.mark.parametrize("order", [("lon", "member", "lat", "time"), ("time", "lat", "lon", "member")])
def test_dimensions_may_stand_in_any_order(tmp_path: Path, order: tuple[str, ...]) -> None:
    u = random(N, T, H, W)
    content = dataset(u=(DIMENSIONS, u)).transpose(*order)
    store = rolled(written(tmp_path / "turned.nc", content), ["u"])
    assert np.array_equal(store.read("frames", slice(None)).reshape(N, T, W, H), u.transpose(0, 1, 3, 2))


def test_packed_numbers_are_unpacked_as_xarray_does(tmp_path: Path) -> None:
    u = random(N, T, H, W).astype(np.float64)
    packing = {"dtype": "i2", "scale_factor": 0.001, "add_offset": 0.5, "_FillValue": -32768}
    path = written(tmp_path / "packed.nc", dataset(u=(DIMENSIONS, u)), encoding={"u": packing})
    expected = xarray.load_dataset(path, engine="h5netcdf")["u"].values
    assert np.abs(expected - u).max() < 6e-4
    assert np.allclose(read_field(path, "u"), expected, rtol=1e-6, atol=1e-7)
    store = rolled(path, ["u"])
    found = store.read("frames", slice(None)).reshape(N, T, W, H)
    assert np.allclose(found, expected.transpose(0, 1, 3, 2), atol=1e-6)


def test_missing_values_are_named_by_variable_and_sample(tmp_path: Path) -> None:
    u = random(N, T, H, W)
    u[3, 1, 2, 0] = np.nan
    for name, encoding in (("nan", {}), ("fill", {"_FillValue": np.float32(-999)}), ("int", {"dtype": "i2"})):
        packing: dict[str, Any] = (
            {**encoding, "scale_factor": 0.01, "_FillValue": -30000} if name == "int" else encoding
        )
        path = written(tmp_path / f"{name}.nc", dataset(u=(DIMENSIONS, u)), encoding={"u": packing})
        with pytest.raises(DataError, match=rf"{name}\.nc: 'u': NaN or Inf in 1 samples \(samples 3\)"):
            rolled(path, ["u"])
        assert not path.with_suffix(".zarr").exists()


def test_unevenly_spaced_coordinates_are_refused(tmp_path: Path) -> None:
    content = dataset(lat=[0.0, 1.0, 3.0, 9.0], u=(DIMENSIONS, random(N, T, H, W)))
    with pytest.raises(DataError, match="points along y are not evenly spaced"):
        rolled(written(tmp_path / "odd.nc", content), ["u"])


def test_dimension_of_another_name_claims_nothing(tmp_path: Path) -> None:
    content = xarray.Dataset({"u": (("member", "stuff", "lon"), random(N, T, W))})
    path = written(tmp_path / "odd.nc", content)
    assert open_variable(path, "u").axes is None
    with pytest.raises(DataError, match="nothing says which axis is time; name the axes with --axes"):
        rolled(path, ["u"])


def test_dimensions_without_points_have_axes_and_no_spacing(tmp_path: Path) -> None:
    u = random(N, T, H, W)
    store = rolled(written(tmp_path / "bare.nc", xarray.Dataset({"u": (DIMENSIONS, u)})), ["u"])
    assert np.array_equal(store.read("frames", slice(None)).reshape(N, T, W, H), u.transpose(0, 1, 3, 2))
    assert [axis.spacing for axis in store.card.axes] == [None, None]
    assert store.card.time["step"] is None


def test_fields_on_different_points_are_never_paired(tmp_path: Path) -> None:
    content = dataset(u=(DIMENSIONS, random(N, T, H, W)), w=((*DIMENSIONS[:3], "x"), random(N, T, H, W - 1)))
    with pytest.raises(DataError, match=r"'u' gives a grid of \(7, 4\) but the target gives \(6, 4\)"):
        rolled(written(tmp_path / "two.nc", content), ["u", "w"])


def test_text_links_empty_variables_and_groups(tmp_path: Path) -> None:
    path = written(tmp_path / "odd.nc", dataset(u=(DIMENSIONS, random(N, T, H, W)), label=("member", ["a"] * N)))
    with h5py.File(path, "r+") as file:
        file["soft"] = h5py.SoftLink("/u")
        file["dangling"] = h5py.SoftLink("/nowhere")
        file["outside"] = h5py.ExternalLink("elsewhere.h5", "/u")
        file["group/sub/deep"] = random(N, H)
        file["empty"] = np.zeros((0, 3))
        file["nothing"] = h5py.Empty("f4")
    assert {"u", "soft", "group/sub/deep", "empty"} <= set(variable_names(path))
    assert not {"dangling", "outside"} & set(variable_names(path))
    assert np.array_equal(read_field(path, "soft"), read_field(path, "u"))
    assert np.array_equal(read_field(path, "group/sub/deep"), random(N, H))
    assert open_variable(path, "empty").shape == (0, 3)
    for name, reason in (("nothing", "it holds nothing"), ("label", "expected numbers"), ("outside", "no variable")):
        with pytest.raises(DataError, match=reason):
            open_variable(path, name)


def test_netcdf_of_before_version_4_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "old.nc").write_bytes(b"CDF\x01" + bytes(100))
    with pytest.raises(DataError, match="is NetCDF of before version 4; make it NetCDF-4 first: nccopy -k nc4"):
        variable_names(tmp_path / "old.nc")
