import shutil
from pathlib import Path

import pytest
import torch

from geomano_hpc.config import DataConfig, GenerateConfig
from geomano_hpc.data import Normaliser, ensure_store, epoch_batches, load_split, share_of_rank, training_batches
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import DataError


def test_an_epoch_visits_every_sample_once_and_the_next_one_in_another_order() -> None:
    first, second = (torch.cat(epoch_batches(10, 4, seed=0, epoch=epoch)) for epoch in (1, 2))
    assert sorted(first.tolist()) == list(range(10))
    assert first.tolist() != second.tolist()
    assert torch.equal(first, torch.cat(epoch_batches(10, 4, seed=0, epoch=1)))
    assert not torch.equal(first, torch.cat(epoch_batches(10, 4, seed=1, epoch=1)))


def test_batches_from_any_step_on_are_those_of_an_undisturbed_training() -> None:
    plan = {"samples": 10, "batch_size": 4, "seed": 3, "epochs": 3}
    whole = list(training_batches(**plan))
    assert [(batch.epoch, batch.step) for batch in whole] == [(e, s) for e in (1, 2, 3) for s in range(3)]
    for done, following in enumerate(whole):
        rest = list(training_batches(**plan, first_epoch=following.epoch, first_step=following.step))
        assert len(rest) == len(whole) - done
        for found, expected in zip(rest, whole[done:], strict=True):
            assert (found.epoch, found.step) == (expected.epoch, expected.step)
            assert torch.equal(found.samples, expected.samples)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_ranks_share_a_batch_without_dropping_or_doubling(world_size: int) -> None:
    batch = torch.arange(5) * 10
    shares = [share_of_rank(batch, rank, world_size) for rank in range(world_size)]
    assert sorted(torch.cat(shares).tolist()) == batch.tolist()


def test_normaliser_decodes_what_it_encodes() -> None:
    field = torch.randn(3, 4)
    normaliser = Normaliser(mean=2.0, std=5.0)
    torch.testing.assert_close(normaliser.decode(normaliser.encode(field)), field)


def test_split_channels(darcy_store: Path, navier_stokes_store: Path) -> None:
    darcy = load_split(open_store(darcy_store), "train", 4)
    assert (len(darcy), darcy.in_channels, darcy.out_channels) == (4, 1, 1)
    rollout = load_split(open_store(navier_stokes_store), "test")
    assert (len(rollout), rollout.in_channels, rollout.out_channels) == (1, 10, 1)


def test_more_samples_than_there_are_is_an_error(darcy_store: Path) -> None:
    with pytest.raises(DataError, match=r"data.test_samples is 5, the store has 4"):
        load_split(open_store(darcy_store), "test", 5)


def test_missing_store_is_made_where_the_recipe_says_how(tmp_path: Path) -> None:
    how = GenerateConfig(problem="darcy", train_samples=3, test_samples=2, grid=10)
    config = DataConfig(store=tmp_path / "made.zarr", generate=how)
    ensure_store(config)
    card = open_store(config.store).card
    assert (card.train_samples, card.test_samples) == (3, 2)
    written = (config.store / "zarr.json").stat().st_mtime_ns
    ensure_store(config)
    assert (config.store / "zarr.json").stat().st_mtime_ns == written


@pytest.mark.parametrize("change", [{"seed": 7}, {"stride": 2}, {"train_samples": 2}, {"grid": 11}])
def test_store_with_other_data_than_the_recipe_says_is_an_error(change: dict[str, int], tmp_path: Path) -> None:
    how = {"problem": "darcy", "train_samples": 3, "test_samples": 2, "grid": 10}
    ensure_store(DataConfig(store=tmp_path / "made.zarr", generate=GenerateConfig.model_validate(how)))
    other = DataConfig(store=tmp_path / "made.zarr", generate=GenerateConfig.model_validate({**how, **change}))
    with pytest.raises(DataError, match=r"holds other data than data\.generate says"):
        ensure_store(other)


def test_missing_shard_is_an_error_and_never_zeros(darcy_store: Path, tmp_path: Path) -> None:
    shutil.copytree(darcy_store, tmp_path / "copy.zarr")
    (tmp_path / "copy.zarr" / "input" / "c" / "0" / "0" / "0" / "0").unlink()
    with pytest.raises(DataError, match="shard input/c/0/0/0/0 is missing"):
        load_split(open_store(tmp_path / "copy.zarr"), "train")


def test_missing_store_without_a_way_to_make_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="geomano data convert"):
        ensure_store(DataConfig(store=tmp_path / "none.zarr"))
