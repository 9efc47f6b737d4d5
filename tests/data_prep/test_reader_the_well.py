"""The Well's files by its specification (docs/data_format.md of PolymathicAI/the_well)."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.conversion.splits import SplitRule
from geomano_hpc.data_prep.problems import own_problem
from geomano_hpc.data_prep.readers import open_variable, variable_names
from geomano_hpc.data_prep.store import Store, open_store
from geomano_hpc.errors import DataError

B, T, H, W = 6, 5, 8, 4


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


RAW = {
    "t0_fields/density": random(B, T, H, W),
    "t0_fields/mask": random(H, W, seed=1),
    "t0_fields/profile": random(B, H, seed=2),
    "t1_fields/velocity": random(B, T, H, W, 2, seed=3),
    "t2_fields/stress": random(B, T, H, W, 2, 2, seed=4),
}
FLAGS: dict[str, tuple[bool, bool, list[bool]]] = {
    "t0_fields/mask": (False, False, [True, True]),
    "t0_fields/profile": (True, False, [True, False]),
}


def well(path: Path, y: Any = None) -> Path:
    with h5py.File(path, "w") as file:
        file.attrs["simulation_parameters"], file.attrs["Re"] = ["Re"], 100.0
        file.attrs["dataset_name"], file.attrs["grid_type"] = "example", "cartesian"
        file.attrs["n_spatial_dims"], file.attrs["n_trajectories"] = 2, B
        dimensions = file.create_group("dimensions")
        dimensions.attrs["spatial_dims"] = ["x", "y"]
        for name, values in (
            ("time", np.arange(T) * 0.5),
            ("x", np.arange(H) * 0.25),
            ("y", np.arange(W) * 0.125 if y is None else y),
        ):
            dimensions[name] = np.asarray(values, np.float32)
            dimensions[name].attrs["sample_varying"] = False
        for group in ("t0_fields", "t1_fields", "t2_fields", "scalars"):
            names = [name.partition("/")[2] for name in RAW if name.startswith(group)]
            file.create_group(group).attrs["field_names"] = names
        for name, values in RAW.items():
            samples, time, varies = FLAGS.get(name, (True, True, [True, True]))
            file[name] = values
            file[name].attrs.update({"sample_varying": samples, "time_varying": time, "dim_varying": varies})
        for name, values, samples, time in (
            ("Re", np.array([100.0]), False, False),
            ("strength", np.arange(B), True, False),
            ("drive", np.arange(T), False, True),
        ):
            file[f"scalars/{name}"] = values.reshape(()) if name == "Re" else values
            file[f"scalars/{name}"].attrs.update({"sample_varying": samples, "time_varying": time})
        conditions = file.create_group("boundary_conditions")
        for name, kind in (("x", "PERIODIC"), ("y", "WALL")):
            one = conditions.create_group(f"{name}_boundary")
            one.attrs.update({"associated_dims": [name], "associated_fields": [], "bc_type": kind})
            one["mask"] = np.zeros(H, bool)
    return path


def rolled(path: Path, inputs: list[str], fields: list[str], constants: list[str]) -> Store:
    split = SplitRule(train=4, test=2)
    settings = own_problem("rollout", "mine", inputs, fields, constants, split, frames_in=1, frames_out=2)
    convert([path], settings, path.with_suffix(".zarr"))
    return open_store(path.with_suffix(".zarr"))


def test_fields_are_found_with_their_axes_and_components(tmp_path: Path) -> None:
    path = well(tmp_path / "example.hdf5")
    assert set(variable_names(path)) == {*RAW, "scalars/Re", "scalars/strength", "scalars/drive"}
    axes = {name: open_variable(path, name).axes for name in variable_names(path)}
    assert axes == {
        "t0_fields/density": ("sample", "t", "x", "y"),
        "t0_fields/mask": ("x", "y"),
        "t0_fields/profile": ("sample", "x"),
        "t1_fields/velocity": ("sample", "t", "x", "y", "c"),
        "t2_fields/stress": ("sample", "t", "x", "y", "c"),
        "scalars/Re": (),
        "scalars/strength": ("sample",),
        "scalars/drive": ("t",),
    }
    assert open_variable(path, "velocity").components == ("x", "y")
    assert open_variable(path, "stress").components == ("xx", "xy", "yx", "yy")


def test_trajectories_scalars_and_constant_fields_are_converted(tmp_path: Path) -> None:
    path = well(tmp_path / "example.hdf5")
    store = rolled(path, ["mask", "profile"], ["density", "velocity", "stress"], ["strength", "Re", "r=@Re"])
    found = store.read("frames", slice(None)).reshape(B, T, H, W, 7)
    assert np.array_equal(found[..., 0], RAW["t0_fields/density"])
    assert np.array_equal(found[..., 1:3], RAW["t1_fields/velocity"])
    assert np.array_equal(found[..., 3:], RAW["t2_fields/stress"].reshape(B, T, H, W, 4))
    card = store.card
    assert [one.name for one in card.targets][:3] == ["density", "velocity.x", "velocity.y"]
    static = store.read("static", slice(None))
    assert np.array_equal(static[..., 0], np.broadcast_to(RAW["t0_fields/mask"], (B, H, W)))
    assert np.array_equal(static[..., 1], np.broadcast_to(RAW["t0_fields/profile"][..., None], (B, H, W)))
    assert [(axis.name, axis.points, axis.start, axis.spacing, axis.boundary) for axis in card.axes] == [
        ("x", H, 0.0, 0.25, "periodic"),
        ("y", W, 0.0, 0.125, "wall"),
    ]
    assert card.time["step"] == 0.5
    constants = store.constants()
    assert constants is not None
    assert np.array_equal(constants, np.stack([np.arange(B), np.full(B, 100), np.full(B, 100)], axis=1))


def test_tensor_is_read_in_any_pieces(tmp_path: Path) -> None:
    one = open_variable(well(tmp_path / "example.hdf5"), "stress")
    expected = RAW["t2_fields/stress"].reshape(B, T, H, W, 4)
    for axis in range(5):
        assert np.array_equal(one.read(axis, 1, 2), expected.take(range(1, 2), axis))
    for where, block in one.blocks():
        assert np.array_equal(block, expected[where])


def test_scalar_that_changes_in_time_is_no_constant(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'(scalars/)?drive': has shape \(5,\); a constant is one real number"):
        rolled(well(tmp_path / "example.hdf5"), [], ["density"], ["drive"])


def test_uneven_points_and_wrong_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="points along y are not evenly spaced"):
        rolled(well(tmp_path / "odd.hdf5", y=[0, 1, 4, 9]), [], ["density"], [])
    with pytest.raises(DataError, match=r"no variable 'densty'; did you mean '.*density'"):
        rolled(well(tmp_path / "example.hdf5"), [], ["densty"], [])
    assert not (tmp_path / "odd.zarr").exists()


def test_flags_that_do_not_agree_with_the_shape_are_refused(tmp_path: Path) -> None:
    path = well(tmp_path / "example.hdf5")
    with h5py.File(path, "r+") as file:
        file["t0_fields/density"].attrs["time_varying"] = False
    with pytest.raises(DataError, match="its flags say sample x y and 0 axes of components, its shape is"):
        open_variable(path, "density")
