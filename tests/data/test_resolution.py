"""Samples at another resolution: out of the store, out of the raw file beside it, or not at all."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from geomano_hpc.data import Batch, Split, load_split
from geomano_hpc.data_prep.convert import convert
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import DataError

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
