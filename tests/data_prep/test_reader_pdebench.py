"""PDEBench's files, laid out as its programs write them: each number of the store is the raw one."""

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest

from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.conversion.splits import SplitRule
from geomano_hpc.data_prep.problems import own_problem
from geomano_hpc.data_prep.readers import file_attributes, open_variable, variable_names
from geomano_hpc.data_prep.store import Store, open_store
from geomano_hpc.errors import DataError

N, T = 6, 5
SPLIT = SplitRule(train=4, test=2)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rolled(file: Path, fields: Sequence[str], constants: Sequence[str] = ()) -> Store:
    settings = own_problem("rollout", "mine", [], list(fields), list(constants), SPLIT, frames_in=1, frames_out=2)
    convert([file], settings, file.with_suffix(".zarr"))
    return open_store(file.with_suffix(".zarr"))


def frames(store: Store, field: int = 0) -> np.ndarray:
    """[sample, t, grid ...]"""
    found = store.read("frames", slice(None))[..., field]
    return found.reshape(N, -1, *found.shape[1:])


def points(store: Store) -> list[tuple[str | float | None, ...]]:
    return [
        (axis.name, axis.points, *(None if value is None else round(value, 6) for value in (axis.start, axis.spacing)))
        for axis in store.card.axes
    ]


def test_lines_in_time_with_one_time_more_than_frames(tmp_path: Path) -> None:
    raw = random(N, T, 8)
    with h5py.File(tmp_path / "1D_Advection_Sols_beta0.1.hdf5", "w") as file:
        file["tensor"] = raw
        file["x-coordinate"] = (np.arange(8, dtype=np.float32) + 0.5) / 8
        file["t-coordinate"] = np.arange(T + 1, dtype=np.float32) * 0.2
        file.attrs["beta"] = 0.1
    path = tmp_path / "1D_Advection_Sols_beta0.1.hdf5"
    assert variable_names(path) == ["tensor"]
    assert open_variable(path, "tensor").axes == ("sample", "t", "x")
    store = rolled(path, ["tensor"], ["@beta"])
    assert np.array_equal(frames(store)[:, :, 0], raw)
    assert points(store) == [("x", 8, 0.0625, 0.125)]
    assert store.card.time["step"] == pytest.approx(0.2)
    constants = store.constants()
    assert constants is not None
    assert constants == pytest.approx(np.full((N, 1), 0.1))


@pytest.mark.parametrize("channels", [1, 2])
def test_groups_of_samples_with_points_of_their_own(tmp_path: Path, channels: int) -> None:
    """2D_rdb has one channel, 2D diffusion-reaction two; there are ten samples and more."""
    raw = random(12, T, 7, 6, channels)
    path = tmp_path / "2D_rdb_NA_NA.h5"
    with h5py.File(path, "w") as file:
        for number, one in enumerate(raw):
            file.create_dataset(f"{number:04}/data", data=one, compression="lzf")
            for name, size, step in (("x", 7, 0.5), ("y", 6, 0.25), ("t", T, 0.01)):
                file[f"{number:04}/grid/{name}"] = (np.arange(size) * step - 1).astype(np.float32)
            file[f"{number:04}"].attrs["config"] = "sim:\n  n: 1\n"
            file.attrs[f"{number:04}/config"] = "seed: 1\n"
    assert variable_names(path) == ["data"]
    assert file_attributes(path) == {}
    assert open_variable(path, "data").axes == ("sample", "t", "x", "y", "c")
    settings = own_problem("rollout", "m", [], ["data"], [], SplitRule(train=8, test=4), frames_in=2, frames_out=3)
    convert([path], settings, tmp_path / "store.zarr")
    store = open_store(tmp_path / "store.zarr")
    found = store.read("frames", slice(None)).reshape(12, T, 7, 6, channels)
    assert np.array_equal(found, raw)
    assert points(store) == [("x", 7, -1.0, 0.5), ("y", 6, -1.0, 0.25)]
    assert store.card.time["step"] == pytest.approx(0.01)
    assert [one.name for one in store.card.targets] == (["data"] if channels == 1 else ["data.0", "data.1"])


def test_lines_in_groups_of_samples(tmp_path: Path) -> None:
    """1D diffusion-sorption; a number of each sample beside it."""
    raw, nu = random(N, T, 9, 1), random(N)
    path = tmp_path / "1D_diff-sorp_NA_NA.h5"
    with h5py.File(path, "w") as file:
        for number, one in enumerate(raw):
            file[f"{number:04}/data"], file[f"{number:04}/nu"] = one, nu[number]
            file[f"{number:04}/grid/x"], file[f"{number:04}/grid/t"] = np.arange(9.0), np.arange(float(T))
    assert open_variable(path, "nu").axes == ("sample",)
    store = rolled(path, ["data"], ["nu"])
    assert np.array_equal(frames(store)[:, :, 0], raw[..., 0])
    constants = store.constants()
    assert constants is not None
    assert np.array_equal(constants[:, 0], nu)


def test_darcy_flow(tmp_path: Path) -> None:
    nu, tensor = random(N, 8, 7), random(N, 1, 8, 7, seed=1)
    path = tmp_path / "2D_DarcyFlow_beta1.0_Train.hdf5"
    with h5py.File(path, "w") as file:
        file["nu"], file["tensor"] = nu, tensor
        file["x-coordinate"], file["y-coordinate"] = np.linspace(0, 1, 8), np.linspace(0, 1, 7)
        file.attrs["beta"] = 1.0
    assert variable_names(path) == ["nu", "tensor"]
    settings = own_problem("steady", "mine", ["nu"], ["tensor"], ["@beta"], SPLIT)
    convert([path], settings, tmp_path / "store.zarr")
    store = open_store(tmp_path / "store.zarr")
    assert np.array_equal(store.read("input", slice(None))[..., 0], nu)
    assert np.array_equal(store.read("target", slice(None))[..., 0], tensor[:, 0])
    assert points(store) == [("x", 8, 0.0, round(1 / 7, 6)), ("y", 7, 0.0, round(1 / 6, 6))]
    assert [one.name for one in store.card.targets] == ["tensor"]


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_compressible_flow_has_a_field_in_each_array(tmp_path: Path, dimensions: int) -> None:
    sizes = (5, 4, 3)[:dimensions]
    names = ["density", "pressure", *("Vx", "Vy", "Vz")[:dimensions]]
    raw = {name: random(N, T, *sizes, seed=seed) for seed, name in enumerate(names)}
    path = tmp_path / f"{dimensions}D_CFD_Rand_Train.hdf5"
    with h5py.File(path, "w") as file:
        for name, values in raw.items():
            file[name] = values
        for axis, size in zip("xyz", sizes, strict=False):
            file[f"{axis}-coordinate"] = (np.arange(size) + 0.5) / 4
        file["t-coordinate"] = np.arange(T + 1) * 0.05
        file.attrs["eta"] = file.attrs["zeta"] = 0.01
    assert sorted(variable_names(path)) == sorted(names)
    assert file_attributes(path) == {"eta": 0.01, "zeta": 0.01}
    store = rolled(path, names)
    for number, name in enumerate(names):
        found = frames(store, number)
        assert np.array_equal(found[:, :, 0] if dimensions == 1 else found, raw[name])
    assert points(store) == [(axis, size, 0.125, 0.25) for axis, size in zip("xyz", sizes, strict=False)]
    assert store.card.time["step"] == pytest.approx(0.05)


def test_incompressible_flow_has_a_force_that_does_not_change(tmp_path: Path) -> None:
    velocity, particles, force = random(N, T, 6, 6, 2), random(N, T, 6, 6, 1, seed=1), random(N, 6, 6, 2, seed=2)
    path = tmp_path / "ns_incom_inhom_2d_512-0.h5"
    with h5py.File(path, "w") as file:
        file["velocity"], file["particles"], file["force"] = velocity, particles, force
        file["t"] = np.tile(np.arange(T, dtype=np.float32), (N, 1))
    settings = own_problem(
        "rollout", "mine", ["force"], ["velocity", "particles"], [], SPLIT, frames_in=1, frames_out=2
    )
    convert([path], settings, tmp_path / "store.zarr")
    store = open_store(tmp_path / "store.zarr")
    found = store.read("frames", slice(None)).reshape(N, T, 6, 6, 3)
    assert np.array_equal(found, np.concatenate([velocity, particles], axis=-1))
    assert np.array_equal(store.read("static", slice(None)), force)


def test_points_that_do_not_agree_with_the_sizes_claim_nothing(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        file["tensor"], file["x-coordinate"] = random(N, T, 8), np.arange(9.0)
    assert open_variable(tmp_path / "odd.h5", "tensor").axes is None
    with pytest.raises(DataError, match="nothing says which axis is time"):
        rolled(tmp_path / "odd.h5", ["tensor"])


def test_unevenly_spaced_points_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        file["tensor"], file["x-coordinate"] = random(N, T, 8), np.arange(8.0) ** 2
        file["t-coordinate"] = np.arange(T + 1.0)
    with pytest.raises(DataError, match=r"points along x are not evenly spaced.*interpolate them first, or say --spac"):
        rolled(tmp_path / "odd.h5", ["tensor"])
