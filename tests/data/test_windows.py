"""Windows of trajectories: found by their number, never copied, and never in two splits."""

import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from geomano_hpc.config import DataConfig
from geomano_hpc.data import Split, load_splits
from geomano_hpc.data.fields import compose
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.conversion.splits import SplitRule
from geomano_hpc.data_prep.problems import own_problem
from geomano_hpc.data_prep.store import FRAMES, Store, open_store
from geomano_hpc.data_prep.store_card import Axis, Field, StoreCard, Windows

TRAJECTORIES, FRAMES_THERE, H, W = 8, 11, 3, 4
SPLITS = SplitRule(5, 1, 2, seed=2)


@pytest.fixture(scope="module")
def raw() -> dict[str, np.ndarray]:
    """The value of a point tells trajectory, frame and place, so that no two are the same."""
    u = np.arange(TRAJECTORIES * FRAMES_THERE * H * W, dtype=np.float32).reshape(TRAJECTORIES, FRAMES_THERE, H, W)
    mask = -np.arange(TRAJECTORIES * H * W, dtype=np.float32).reshape(TRAJECTORIES, H, W)
    return {"u": u, "v": u + 0.5, "mask": mask, "nu": np.arange(TRAJECTORIES, dtype=np.float32) / 8}


def stored(raw: dict[str, np.ndarray], folder: Path, context: bool = False, **windows: Any) -> Store:
    file = folder / "raw.npz"
    np.savez(file, **raw)  # type: ignore[arg-type]
    given = (["mask"], ["u", "v"], ["nu"]) if context else ([], ["u", "v"], [])
    settings = own_problem("rollout", "mine", *given, SPLITS, axes="sample x y,sample t x y", **windows)
    convert([file], settings, folder / "s.zarr")
    return open_store(folder / "s.zarr")


def splits_of(store: Store, **data: Any) -> dict[str, Split]:
    return load_splits(store, DataConfig.model_validate({"store": store.path, **data})).splits


def channels(*frames: np.ndarray) -> np.ndarray:
    """The fields of the first frame, then those of the next: [H, W, frame * field]."""
    return np.stack([field for pair in zip(*frames, strict=True) for field in pair], axis=-1)


def whole(split: Split) -> tuple[np.ndarray, np.ndarray]:
    batch = split.batch(torch.arange(len(split)))
    return batch.input_BHWC.numpy(), batch.target_BHWC.numpy()


@pytest.mark.parametrize("loading", ["memory", "stream"])
@pytest.mark.parametrize(
    ("frames_in", "frames_out", "window_stride", "time_stride"),
    [(3, 5, None, 1), (3, 2, 1, 1), (2, 2, 3, 2), (1, 1, 4, 1)],
)
def test_windows_are_slices_of_the_raw_trajectory(
    frames_in: int, frames_out: int, window_stride: int | None, time_stride: int, loading: str, raw: Any, tmp_path: Path
) -> None:
    strides = {"window_stride": window_stride, "time_stride": time_stride}
    given: dict[str, Any] = {key: value for key, value in strides.items() if value is not None}
    store = stored(raw, tmp_path, frames_in=frames_in, frames_out=frames_out, **given)
    step, length = window_stride or frames_out, frames_in + frames_out
    kept = [raw[name][:, ::time_stride] for name in "uv"]
    starts = [first for first in range(0, kept[0].shape[1], step) if first + length <= kept[0].shape[1]]
    origin = np.asarray(store.array("source_sample")[:])
    for name, split in splits_of(store, loading=loading).items():
        inputs, targets = whole(split)
        places = [(int(origin[number]), first) for number in store.split(name) for first in starts]
        assert len(split) == len(places) > 0
        for window, (sample, first) in enumerate(places):
            middle, end = first + frames_in, first + length
            assert np.array_equal(inputs[window], channels(*(one[sample, first:middle] for one in kept)))
            assert np.array_equal(targets[window], channels(*(one[sample, middle:end] for one in kept)))


@pytest.mark.parametrize("loading", ["memory", "stream"])
def test_windows_are_found_in_any_order_and_have_their_own_context(loading: str, raw: Any, tmp_path: Path) -> None:
    store = stored(raw, tmp_path, context=True, frames_in=2, frames_out=1, window_stride=4)
    origin = np.asarray(store.array("source_sample")[:])
    split = splits_of(store, loading=loading)["train"]
    order = torch.tensor([14, 0, 7, 7, 3])
    assert len(split) == 5 * 3
    batches = list(split.batches(order.split(2)))
    inputs = torch.cat([batch.input_BHWC for batch in batches]).numpy()
    assert split.signature.context == ("mask", "nu")
    for given, number in zip(inputs, order.tolist(), strict=True):
        sample, first = int(origin[store.split("train")[number // 3]]), 4 * (number % 3)
        assert np.array_equal(given[..., :4], channels(*(raw[name][sample, first : first + 2] for name in "uv")))
        assert np.array_equal(given[..., 4], raw["mask"][sample])
        assert (given[..., 5] == raw["nu"][sample]).all()


def test_frames_of_one_trajectory_are_in_one_split_only(raw: Any, tmp_path: Path) -> None:
    """However close the windows are."""
    splits = splits_of(stored(raw, tmp_path, frames_in=2, frames_out=2, window_stride=1))
    seen = {}
    for name, split in splits.items():
        values = np.concatenate([part[..., 0].ravel() for part in whole(split)])
        seen[name] = set((values // (FRAMES_THERE * H * W)).astype(int).tolist())
        assert len(seen[name]) == getattr(SPLITS, name)
    assert sum(map(len, seen.values())) == len(set.union(*seen.values())) == TRAJECTORIES


def test_fewer_trajectories_may_be_trained_on(raw: Any, tmp_path: Path) -> None:
    store = stored(raw, tmp_path, frames_in=2, frames_out=2, window_stride=1)
    split = splits_of(store, train_samples=2)["train"]
    assert len(split) == 2 * 8
    origin = np.asarray(store.array("source_sample")[:])
    assert np.array_equal(whole(split)[0][8, ..., 0], raw["u"][origin[store.split("train")[1]], 0])


def test_both_ways_of_loading_hold_a_frame_once(raw: Any, tmp_path: Path) -> None:
    """With a window at every frame, each frame is in four windows."""
    store = stored(raw, tmp_path, frames_in=2, frames_out=2, window_stride=1)
    loaded = load_splits(store, DataConfig(store=store.path))
    assert loaded.record["sample_bytes"] == 4 * TRAJECTORIES * FRAMES_THERE * H * W * 2


MANY = 1000


def many_trajectories() -> Store:
    """What `compose` asks of a store with 1,000 trajectories of 1,000 frames."""
    windows = Windows(frames_in=3, frames_out=5, frames=MANY, stride=1)
    u, axes = (Field("u"),), (Axis("x", 1), Axis("y", 4))
    card = StoreCard("mine", "rollout", u, u, {"train": MANY}, axes, {}, constants=(Field("nu"),), windows=windows)
    constants = np.arange(MANY, dtype=np.float32)[:, None]
    return cast(Store, SimpleNamespace(card=card, arrays=(FRAMES,), constants=lambda: constants))


def test_a_million_frames_are_indexed_and_not_copied() -> None:
    """Almost a million windows of eight frames: their numbers take a few dozen megabytes, whatever the grid is."""
    asked = []

    def read(name: str, rows: np.ndarray) -> torch.Tensor:
        asked.append((name, len(rows), int(rows[0]), int(rows[-1])))
        return torch.arange(MANY * MANY, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 1, 4, 1)

    tracemalloc.start()
    split = compose(many_trajectories(), np.arange(MANY), read)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert asked == [(FRAMES, MANY * MANY, 0, MANY * MANY - 1)]
    assert len(split) == MANY * 993
    assert peak < 100e6
    assert index_bytes(split) < 64e6
    batch = split.batch(torch.tensor([0, 992, 993, MANY * 993 - 1]))
    assert batch.input_BHWC[:, 0, 3, 0].tolist() == [0, 992, 1000, 999_992]
    assert batch.target_BHWC[:, 0, 3, -1].tolist() == [7, 999, 1007, 999_999]
    assert batch.input_BHWC[:, 0, 0, -1].tolist() == [0, 0, 1, 999]


def index_bytes(whole: Any) -> int:
    """Of all lists of numbers that something holds, each counted once."""
    seen: dict[int, int] = {}

    def visit(one: Any) -> None:
        if isinstance(one, torch.Tensor):
            if one.ndim == 1:  # not the frames, which stand for what lies in the store
                seen[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
        elif isinstance(one, list | tuple):
            for part in one:
                visit(part)
        elif hasattr(one, "__dict__"):
            for part in vars(one).values():
                visit(part)

    visit(whole)
    return sum(seen.values())
