"""Samples at another resolution: out of the store, out of the raw file beside it, or not at all."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from geomano_hpc.data import Batch, Split, load_split
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.conversion.splits import SplitRule
from geomano_hpc.data_prep.problems import ALL_AXES, own_problem, problem
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import ConfigError, DataError

SIZES = {"train_samples": 10, "test_samples": 4}


def fields(split: Split) -> Batch:
    return split.batch(torch.arange(len(split)))


def test_coarser_grid_comes_out_of_the_store(darcy_store: Path) -> None:
    """9 points a side are 8 intervals: every second point gives 5."""
    whole, half = (load_split(open_store(darcy_store), "test", None, points) for points in (None, 5))
    assert half.grid == (5, 5)
    assert np.array_equal(fields(half).input_BHWC, fields(whole).input_BHWC[:, ::2, ::2])
    assert np.array_equal(fields(half).target_BHWC, fields(whole).target_BHWC[:, ::2, ::2])
    assert half.input_normaliser == whole.input_normaliser


@pytest.mark.parametrize("name", ["train", "test"])
def test_finer_grid_comes_out_of_the_raw_file_beside_the_store(darcy_raw: Path, darcy_store: Path, name: str) -> None:
    fine = darcy_raw.with_name("fine.zarr")
    convert([darcy_raw], problem("darcy", stride=1, **SIZES), fine)
    expected = load_split(open_store(fine), name, 3)
    found = load_split(open_store(darcy_store), name, 3, resolution=17)
    assert found.grid == (17, 17)
    assert np.array_equal(fields(found).input_BHWC, fields(expected).input_BHWC)
    assert np.array_equal(fields(found).target_BHWC, fields(expected).target_BHWC)


def test_periodic_grid_of_a_rollout_is_divided(navier_stokes_store: Path) -> None:
    store = open_store(navier_stokes_store)
    assert load_split(store, "test", None, 4).grid == (4, 4)
    assert load_split(store, "test", None, 16).grid == (16, 16)
    with pytest.raises(DataError, match="which gives 4, 8, 16 but not 5"):
        load_split(store, "test", None, 5)


@pytest.mark.parametrize(
    ("points", "boundary", "possible"),
    [
        ((10, 14), ["x=periodic", "y=wall"], "14"),  # of 13 intervals and 10 points nothing divides both
        ((9, 17), ["wall"], "3, 5, 9, 17"),
        ((9, 14), ["periodic"], "14"),
        ((8, 12), ["periodic"], "3, 6, 12"),
    ],
)
def test_every_side_keeps_its_domain(
    points: tuple[int, int], boundary: list[str], possible: str, tmp_path: Path
) -> None:
    values = np.random.default_rng(0).standard_normal((4, *points))
    np.savez(tmp_path / "raw.npz", k=values, u=values)
    words = dict(one.rpartition("=")[::2] for one in boundary)
    sides = {axis or ALL_AXES: known for axis, known in words.items()}
    settings = own_problem("steady", "mine", ["k"], ["u"], [], SplitRule(), boundary=sides)
    convert([tmp_path / "raw.npz"], settings, tmp_path / "s.zarr")
    store = open_store(tmp_path / "s.zarr")
    with pytest.raises(DataError, match=f"which gives {possible} but not 7"):
        load_split(store, "test", None, 7)
    for resolution in map(int, possible.split(", ")):
        parts = points[1] if "periodic" in boundary[0] else points[1] - 1
        stride = parts // (resolution - points[1] + parts)
        found = fields(load_split(store, "test", None, resolution)).input_BHWC[0, ..., 0]
        assert np.array_equal(found, values[-1, ::stride, ::stride].astype(np.float32))


def test_finer_grid_has_the_points_of_the_raw_file_whatever_the_stride_left_out(tmp_path: Path) -> None:
    """18 points thinned to every second are 9, of which 17 would be guessed."""
    values = np.random.default_rng(0).standard_normal((4, 18, 18))
    np.savez(tmp_path / "raw.npz", k=values, u=values)
    settings = own_problem("steady", "mine", ["k"], ["u"], [], SplitRule(), stride=2)
    convert([tmp_path / "raw.npz"], settings, tmp_path / "s.zarr")
    store = open_store(tmp_path / "s.zarr")
    assert load_split(store, "test", None, 18).grid == (18, 18)
    with pytest.raises(DataError, match="beside it has 18, which gives 3, 5, 9, 18 but not 17"):
        load_split(store, "test", None, 17)


def test_periodic_axis_is_thinned_evenly_or_not_at_all(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((4, 17, 17))
    np.savez(tmp_path / "raw.npz", k=values, u=values)
    settings = own_problem("steady", "mine", ["k"], ["u"], [], SplitRule(), stride=2, boundary={ALL_AXES: "periodic"})
    with pytest.raises(ConfigError, match="axis x is periodic and has 17 points"):
        convert([tmp_path / "raw.npz"], settings, tmp_path / "s.zarr")


def test_resolution_that_is_not_there_names_those_that_are(darcy_raw: Path, darcy_store: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"holds 9 points a side and darcy.h5 beside it has 17, which gives 3, 5, 9, 17"
    ):
        load_split(open_store(darcy_store), "test", None, 7)
    alone = tmp_path / "alone.zarr"
    shutil.copytree(darcy_store, alone)
    with pytest.raises(DataError, match=r"its raw file darcy.h5 is not beside it, which gives 3, 5, 9 but not 17"):
        load_split(open_store(alone), "test", None, 17)
    (tmp_path / "darcy.h5").write_bytes(b"another file of that name")
    with pytest.raises(DataError, match="is not beside it"):
        load_split(open_store(alone), "test", None, 17)
