"""Some samples of a store as a store of their own."""

from pathlib import Path

import numpy as np
import pytest
import torch

from geomano_hpc.data import load_split
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.conversion.splits import SplitRule
from geomano_hpc.data_prep.problems import own_problem
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.data_prep.subset import subset
from geomano_hpc.data_prep.verify import verify
from geomano_hpc.errors import DataError


@pytest.fixture
def rollout_store(tmp_path: Path) -> Path:
    """Six trajectories of frames, with a static field and a constant of each."""
    rng = np.random.default_rng(0)
    u, mask, nu = rng.standard_normal((6, 5, 8, 8)), rng.standard_normal((6, 8, 8)), np.arange(1.0, 7.0)
    np.savez(tmp_path / "raw.npz", u=u, mask=mask, nu=nu)
    axes = {"axes": "sample t x y", "field_axes": {"mask": "sample x y"}}
    frames = {"frames_in": 2, "frames_out": 1, "window_stride": 1}
    settings = own_problem("rollout", "mine", ["mask"], ["u"], ["nu"], SplitRule(4, None, 2), **axes, **frames)
    convert([tmp_path / "raw.npz"], settings, tmp_path / "mine.zarr")
    return tmp_path / "mine.zarr"


def test_subset_is_a_good_store_of_these_samples_and_no_others(darcy_store: Path, tmp_path: Path) -> None:
    store = open_store(darcy_store)
    splits = {"train": np.array([0, 1, 5]), "test": np.array([3, 9])}
    found = subset(store, splits, tmp_path / "some.zarr")
    assert verify(found.path) == []
    assert found.array("input").shape[0] == 5
    assert found.card.splits == {"train": 3, "test": 2}
    for split, numbers in splits.items():
        for name in store.arrays:
            assert np.array_equal(found.rows(name, found.split(split)), store.rows(name, numbers))
    assert (found.card.inputs, found.card.axes) == (store.card.inputs, store.card.axes)
    with pytest.raises(DataError, match=r"its raw file darcy\.zarr is not beside it"):
        load_split(found, "test", resolution=17)  # of the samples of the raw file it knows nothing


def test_trajectories_keep_their_frames_static_fields_and_constants(rollout_store: Path, tmp_path: Path) -> None:
    store = open_store(rollout_store)
    found = subset(store, {"train": np.array([0, 2]), "test": np.array([3])}, tmp_path / "some.zarr")
    assert verify(found.path) == []
    whole, part = (load_split(one, "train") for one in (store, found))
    windows = torch.arange(12).reshape(4, 3)[[0, 2]].flatten()  # three of each trajectory
    expected, read = whole.batch(windows), part.batch(torch.arange(6))
    assert len(part) == 6
    assert torch.equal(read.input_BHWC, expected.input_BHWC)  # two frames, the static field, the constant
    assert torch.equal(read.target_BHWC, expected.target_BHWC)


def test_subset_that_is_there_is_left_and_another_one_is_refused(darcy_store: Path, tmp_path: Path) -> None:
    store, out = open_store(darcy_store), tmp_path / "some.zarr"
    splits = {"train": np.array([0, 1]), "test": np.array([2])}
    made = subset(store, splits, out).path.stat().st_mtime_ns
    assert subset(store, splits, out).path.stat().st_mtime_ns == made
    with pytest.raises(DataError, match=r"some\.zarr holds other samples than are wanted of .*; remove it"):
        subset(store, {**splits, "test": np.array([2, 3])}, out)
