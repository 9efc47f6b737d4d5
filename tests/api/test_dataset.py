"""A store as a torch Dataset."""

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import geomano_hpc as gm
from tests.support.stores import make_store

LOADINGS = ("memory", "stream")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A store of several shards: 8 training and 3 test samples."""
    path = tmp_path_factory.mktemp("store") / "made.zarr"
    return path, make_store(path)


@pytest.mark.parametrize("loading", LOADINGS)
def test_samples_are_those_of_the_store_in_physical_units(
    loading: str, made: tuple[Path, dict[str, np.ndarray]]
) -> None:
    path, values = made
    test = gm.open_dataset(str(path), split="test", loading=loading)  # type: ignore[arg-type]
    assert (len(test), test.loading, test.grid, test.kind, test.problem) == (3, loading, (12, 12), "steady", "darcy")
    given, target = test[1]
    assert given.dtype == target.dtype == torch.float32
    np.testing.assert_array_equal(given, values["input"][9])
    np.testing.assert_array_equal(target, values["target"][9])
    np.testing.assert_array_equal(test[-1][0], values["input"][10])
    np.testing.assert_array_equal(test[np.int64(2)][0], values["input"][10])
    mask = [True, False, True]
    masks: list[tuple[Any, list[int]]] = [(one, [8, 10]) for one in (mask, np.array(mask), torch.tensor(mask))]
    for index, rows in ((slice(1, None), [9, 10]), ([2, 0], [10, 8]), (torch.tensor([-1]), [10]), *masks):
        inputs, targets = test[index]
        np.testing.assert_array_equal(inputs, values["input"][rows])
        np.testing.assert_array_equal(targets, values["target"][rows])
    assert len(list(test)) == 3  # type: ignore[call-overload]
    for beyond in (3, -4):
        with pytest.raises(IndexError, match=f"sample {beyond} of the split test, which has 3"):
            test[beyond]
    with pytest.raises(IndexError, match="a mask of 2 for the split test, which has 3"):
        test[[True, False]]
    with pytest.raises(TypeError, match="True is no number of a sample"):
        test[True]


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("loading", LOADINGS)
def test_workers_read_the_same_samples(start: str, loading: str, made: tuple[Path, dict[str, np.ndarray]]) -> None:
    path, values = made
    train = gm.open_dataset(path, loading=loading)  # type: ignore[arg-type]
    assert train[0][0].shape == (12, 12, 1)  # the readers of this process are open before the workers start
    context = multiprocessing.get_context(start)
    loader = DataLoader(train, batch_size=3, num_workers=2, multiprocessing_context=context, timeout=120)
    inputs = torch.cat([given for given, _ in loader])
    np.testing.assert_array_equal(inputs, values["input"][:8])


@pytest.mark.parametrize("loading", LOADINGS)
def test_a_pickled_data_set_reads_on(loading: str, made: tuple[Path, dict[str, np.ndarray]]) -> None:
    train = gm.open_dataset(made[0], loading=loading, samples=4)  # type: ignore[arg-type]
    before = train[3]
    again = pickle.loads(pickle.dumps(train))  # noqa: S301
    assert len(again) == 4
    assert torch.equal(again[3][0], before[0])
    assert torch.equal(again[3][1], before[1])


def test_a_rollout_has_frames_as_channels_and_the_normalisers_of_its_store(navier_stokes_store: Path) -> None:
    train = gm.open_dataset(navier_stokes_store)
    assert (train.kind, train.in_channels, train.target_channels, train.grid) == ("rollout", 10, 10, (8, 8))
    assert train[0][1].shape == (8, 8, 10)
    assert train.input_normaliser == gm.Normaliser(0.0, 1.0)


def test_another_resolution_comes_from_the_raw_file(darcy_store: Path) -> None:
    fine = gm.open_dataset(darcy_store, resolution=17)
    assert fine.grid == (17, 17)
    assert torch.equal(fine[0][0][::2, ::2], gm.open_dataset(darcy_store)[0][0])


def test_what_is_not_there_is_said_in_one_line(darcy_store: Path, tmp_path: Path) -> None:
    with pytest.raises(gm.DataError, match=r"nowhere\.zarr: no such store"):
        gm.open_dataset(str(tmp_path / "nowhere.zarr"))
    with pytest.raises(gm.ConfigError, match=r"has no split 'valid'; choose 'train' or 'test'"):
        gm.open_dataset(darcy_store, split="valid")
    with pytest.raises(gm.DataError, match=r"train_samples is 11, the store has 10"):
        gm.open_dataset(darcy_store, samples=11)
    with pytest.raises(gm.ConfigError, match="samples is '3'"):
        gm.open_dataset(darcy_store, samples="3")  # type: ignore[arg-type]
    with pytest.raises(gm.ConfigError, match="samples is 0"):
        gm.open_dataset(darcy_store, samples=0)
    with pytest.raises(gm.ConfigError, match="loading is 'disk'; choose 'auto', 'memory', 'stream'"):
        gm.open_dataset(darcy_store, loading="disk")  # type: ignore[arg-type]
    with pytest.raises(gm.ConfigError, match="another resolution is cut out in memory"):
        gm.open_dataset(darcy_store, loading="stream", resolution=5)
