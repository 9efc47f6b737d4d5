"""NetCDF-4 files as xarray writes them: axes by the names of dimensions, numbers unpacked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray

from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.conversion.splits import SplitRule
from geomano_hpc.data_prep.problems import own_problem
from geomano_hpc.data_prep.readers import open_variable, variable_names
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
    with pytest.raises(
        DataError, match="calls its dimensions member, stuff, lon, which does not say which axes they are"
    ):
        rolled(path, ["u"])


def test_staggered_points_in_one_file_are_not_taken_as_the_same(tmp_path: Path) -> None:
    x = np.arange(5.0)
    fields = {"u": (("run", "xu"), random(4, 5)), "p": (("run", "x"), random(4, 5))}
    path = written(tmp_path / "st.nc", xarray.Dataset(fields, {"xu": x + 0.5, "x": x}))
    with pytest.raises(DataError, match="'u': calls its dimensions run, xu"):
        convert([path], own_problem("steady", "mine", ["u"], ["p"], [], SplitRule()), tmp_path / "s.zarr")


@pytest.mark.parametrize("runs", [[3, 2, 1, 0], [0, 2, 1, 3]])
def test_samples_of_two_files_are_paired_by_their_numbers(tmp_path: Path, runs: list[int]) -> None:
    """Taken by place, every input would have the target of another run."""
    for name, numbers in (("u", runs), ("p", [0, 1, 2, 3])):
        field = {name: (("run", "y", "x"), random(4, 5, 6))}
        written(tmp_path / f"{name}.nc", xarray.Dataset(field, {"run": numbers}))
    settings = own_problem("steady", "mine", ["u"], [f"p={tmp_path}/p.nc"], [], SplitRule())
    with pytest.raises(DataError, match="its samples are not numbered as those of"):
        convert([tmp_path / "u.nc"], settings, tmp_path / "s.zarr")
    convert([tmp_path / "u.nc"], replace(settings, axes="sample y x"), tmp_path / "s.zarr")


def test_members_in_files_behind_each_other_are_joined(tmp_path: Path) -> None:
    u = random(8, 5, 6)
    for first in (0, 4):
        field = dict.fromkeys(("u", "p"), (("member", "y", "x"), u[first : first + 4]))
        written(tmp_path / f"{first}.nc", xarray.Dataset(field, {"member": np.arange(first, first + 4)}))
    settings = own_problem("steady", "mine", ["u"], ["p"], [], SplitRule())
    convert([tmp_path / "0.nc", tmp_path / "4.nc"], settings, tmp_path / "s.zarr")
    found = open_store(tmp_path / "s.zarr").read("input", slice(None))[..., 0]
    assert np.array_equal(found, u.transpose(0, 2, 1))


@pytest.mark.parametrize("what", ["u", "x"])
def test_files_in_other_units_are_not_put_behind_each_other(tmp_path: Path, what: str) -> None:
    for number, units in enumerate(("m", "cm")):
        content = xarray.Dataset(
            {"u": (("n", "x"), random(4, 5)), "p": (("n", "x"), random(4, 5))}, {"x": np.arange(5)}
        )
        content[what].attrs["units"] = units
        written(tmp_path / f"{number}.nc", content)
    settings = own_problem("steady", "mine", ["u"], ["p"], [], SplitRule())
    with pytest.raises(
        DataError, match=r"is in cm, and in m in the first file|0 and on by 1 cm, those of .* 0 and on by 1 m"
    ):
        convert([tmp_path / "0.nc", tmp_path / "1.nc"], settings, tmp_path / "s.zarr")


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
