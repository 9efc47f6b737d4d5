"""The keys `rollout` of a recipe: each changes what it says and nothing else, for every model alike."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from geomano_hpc.config import Recipe, RolloutConfig, load_recipe
from geomano_hpc.data import Normaliser, Signature, Split
from geomano_hpc.errors import ConfigError
from geomano_hpc.training.loop import train
from geomano_hpc.training.losses import relative_l2
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.rollouts import Rollout, Share, seed_of_noise
from geomano_hpc.training.shapes import data_shape
from geomano_hpc.training.tasks import Task
from tests.support.rollouts import FRAMES_IN, FRAMES_OUT, make_drifting_store, make_recipe

CPU = torch.device("cpu")
LAST = FRAMES_IN + FRAMES_OUT  # frames are called 1, 2, ... here


class Watched(nn.Module):
    """Predicts the last frame that it sees plus 1, 2, ... and `error`, and remembers the frames that it saw."""

    def __init__(self, seen: int = FRAMES_IN, step_frames: int = 1, error: float = 0.0) -> None:
        super().__init__()
        self.seen, self.step_frames = seen, step_frames
        self.error = nn.Parameter(torch.tensor(error))
        self.shown: list[list[float]] = []
        self.whole: list[torch.Tensor] = []

    def forward(self, given_BHWC: torch.Tensor) -> torch.Tensor:
        assert given_BHWC.shape[-1] == 2 * self.seen + 1
        self.shown.append(given_BHWC[0, 0, 0, : 2 * self.seen : 2].tolist())
        self.whole.append(given_BHWC)
        last = given_BHWC[..., 2 * self.seen - 2 : 2 * self.seen]
        return torch.cat([last + step + self.error for step in range(1, self.step_frames + 1)], dim=-1)


def task(keys: RolloutConfig = RolloutConfig(), step_frames: int = 1, std: float = 1.0) -> Task:  # noqa: B008
    """Frame t of the first field is t everywhere, of the second 100 + t; the context is -1. Two samples."""
    frames = torch.arange(1.0, LAST + 1)
    both = torch.stack([frames, 100 + frames], dim=-1).flatten().expand(2, 12, 12, -1)
    given = torch.cat([both[..., : 2 * FRAMES_IN], torch.full((2, 12, 12, 1), -1.0)], dim=-1)
    normalisers = (Normaliser(0.0, std), Normaliser(0.0, std))
    known = Signature("rollout", ("u", "v"), ("u", "v"), *normalisers, ("nu",), FRAMES_IN, FRAMES_OUT, step_frames)
    known = Signature(**{**vars(known), "last_frames": keys.frames_in})
    return Task(Split(known, given, both[..., 2 * FRAMES_IN :]), 0.0, rollout_keys=keys)


def shown_in_training(keys: RolloutConfig, error: float = 0.0, step_frames: int = 1) -> list[list[float]]:
    model = Watched(keys.frames_in or FRAMES_IN, step_frames, error)
    task(keys, step_frames).loss_parts(model, torch.arange(2), CPU)
    return model.shown


def test_a_model_of_the_last_frames_sees_no_others_in_training_and_rollout() -> None:
    keys = RolloutConfig(frames_in=2)
    assert shown_in_training(keys) == [[t, t + 1] for t in range(2, 2 + FRAMES_OUT)]
    model = Watched(2, error=0.5)
    task(keys).predict(model, torch.arange(2), CPU)
    seen = [2, 3, *[3 + 1.5 * step for step in range(1, FRAMES_OUT)]]
    assert model.shown == [seen[step : step + 2] for step in range(FRAMES_OUT)]
    assert model.whole[-1][0, 0, 0, -1] == -1  # the context stays


def test_all_pairs_are_trained_on_from_the_first_frames_on_that_there_are() -> None:
    assert shown_in_training(RolloutConfig(frames_in=1)) == [[t] for t in range(3, LAST)]
    assert shown_in_training(RolloutConfig(frames_in=1, pairs="all")) == [[t] for t in range(1, LAST)]
    assert shown_in_training(RolloutConfig(frames_in=2, pairs="all")) == [[t, t + 1] for t in range(1, LAST - 1)]


def test_windows_of_several_frames_end_where_they_do_without_all_pairs() -> None:
    keys = RolloutConfig(frames_in=1, pairs="all")
    assert shown_in_training(keys, step_frames=2) == [[1], [3], [5], [7]]
    assert shown_in_training(keys, step_frames=3) == [[3], [6]]


def test_pushforward_goes_on_from_its_own_frames_as_far_as_there_are_any_before() -> None:
    """Each own step errs by 0.5; the first window has no frame more before it than the model sees."""
    one = shown_in_training(RolloutConfig(pushforward=1), error=0.5)
    assert one[0] == [1, 2, 3]
    assert one[1:5] == [[1, 2, 3], [2, 3, 4.5], [2, 3, 4], [3, 4, 5.5]]
    two = shown_in_training(RolloutConfig(pushforward=2, frames_in=1), error=0.5)
    assert two[:6] == [[1], [2.5], [4], [2], [3.5], [5]]


def test_pushforward_has_no_gradient_before_the_last_step() -> None:
    """The gradient of one step by its error, whatever was added before."""
    found = []
    for pushforward in (0, 2):
        keys = RolloutConfig(frames_in=1, pushforward=pushforward, steps_per_window=1)
        model = Watched(1, error=0.5)
        task(keys).loss_parts(model, torch.arange(2), CPU, Share(4)).total.backward()
        assert model.error.grad is not None
        found.append(model.error.grad.item())
    assert found[0] == pytest.approx(found[1])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_shares_of_a_rollout_are_trained_on_one_after_the_other(size: int) -> None:
    keys = RolloutConfig(frames_in=1, steps_per_window=size)
    whole, parted = Watched(1, error=0.25), Watched(1, error=0.25)
    expected = task().loss_parts(Watched(error=0.25), torch.arange(2), CPU).total
    assert task(keys).loss_parts(whole, torch.arange(2), CPU).total.item() == pytest.approx(expected.item(), rel=1e-6)
    one = task(keys)
    assert one.steps_of_batch == -(-FRAMES_OUT // size)
    losses = [
        one.loss_parts(parted, torch.arange(2), CPU, Share(number)).total.item() for number in range(one.steps_of_batch)
    ]
    assert parted.shown == whole.shown
    assert sum(losses) == pytest.approx(expected.item(), rel=1e-6)
    assert sum(map(one.rollout.part_of_rollout, range(one.steps_of_batch))) == pytest.approx(1)


def test_noise_is_on_the_frames_that_the_model_sees_and_on_nothing_else() -> None:
    keys, std = RolloutConfig(noise=0.1), 7.0
    clean, noisy = Watched(), Watched()
    one = task(keys, std=std)
    one.loss_parts(clean, torch.arange(2), CPU)  # no share: nothing is trained
    found = one.loss_parts(noisy, torch.arange(2), CPU, Share(0, [5, 6]))
    added = torch.stack([b - a for a, b in zip(clean.whole, noisy.whole, strict=True)])
    assert (added[..., -1] == 0).all()
    frames = added[..., :-1]
    assert frames.std() == pytest.approx(0.1, rel=0.05)
    assert frames.mean().abs() < 0.01
    assert torch.allclose(
        frames[0][..., 2:], frames[1][..., :-2], atol=1e-5
    )  # a frame has the same noise in each window
    assert not torch.allclose(frames[:, 0], frames[:, 1], atol=0.01)
    targets = one.split.target_SHWC
    assert isinstance(targets, torch.Tensor)
    outputs = [std * (whole[..., 4:6] + 1) for whole in noisy.whole]
    pairs = [
        (output[..., field : field + 1], targets[..., 2 * step + field : 2 * step + field + 1])
        for step, output in enumerate(outputs)
        for field in range(2)
    ]
    assert found.total.item() == pytest.approx(sum(relative_l2(*pair).sum().item() for pair in pairs) / 2, rel=1e-5)


def test_noise_is_that_of_seed_epoch_and_sample() -> None:
    seeds = {seed_of_noise(seed, epoch, sample) for seed in range(3) for epoch in range(1, 4) for sample in range(5)}
    assert len(seeds) == 3 * 3 * 5
    one, shown = task(RolloutConfig(noise=0.1)), []
    for samples, seeds_of in (([0, 1], [5, 6]), ([1], [6]), ([1], [7])):
        model = Watched()
        one.loss_parts(model, torch.tensor(samples), CPU, Share(0, seeds_of))
        shown.append(model.whole[0][-1])
    assert torch.equal(shown[0], shown[1])  # alone or in a batch
    assert not torch.equal(shown[1], shown[2])


def test_noise_of_each_field_is_in_units_of_its_own() -> None:
    one = task(RolloutConfig(noise=0.5))
    both = Normaliser((0.0, 0.0) * FRAMES_IN + (0.0,), (2.0, 50.0) * FRAMES_IN + (1.0,))
    known = Signature(**{**vars(one.signature), "input_normaliser": both})
    seen = torch.zeros(1, 64, 64, 4)
    noisy = Rollout(known, one.rollout_keys)._noisy(seen, [3])
    assert noisy[..., ::2].std() == pytest.approx(1, rel=0.05)
    assert noisy[..., 1::2].std() == pytest.approx(25, rel=0.05)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_drifting_store(tmp_path_factory.mktemp("drifting"))


def test_shape_of_a_model_follows_the_keys(store: Path) -> None:
    assert data_shape(make_recipe(store, {})) == (8, 8, 2 * FRAMES_IN + 2, 2)
    assert data_shape(make_recipe(store, {"frames_in": 1}, step_frames=3)) == (8, 8, 2 + 2, 6)
    made = load_recipe("navier_stokes_smoke", {"data.store": "not_there.zarr", "rollout.frames_in": 4})
    made = made.model_copy(update={"data": load_recipe("navier_stokes_smoke").data})
    assert data_shape(made)[2:] == (4, 1)


Wrong = tuple[dict[str, Any], dict[str, Any], str]
WRONG: Sequence[Wrong] = (
    ({"frames_in": 4}, {}, r"rollout.frames_in is 4, and a window of .*drift.zarr has 3 given frames"),
    ({"frames_in": 3, "pairs": "all"}, {}, r"rollout.pairs all adds nothing where rollout.frames_in is 3"),
    ({"frames_in": 1, "pairs": "all"}, {"step_frames": 4}, r"rollout.pairs all adds nothing .* training.step_frames 4"),
    ({"steps_per_window": 6}, {}, r"rollout.steps_per_window is 6, and a rollout of .* is predicted in 5 windows"),
    ({"steps_per_window": 4}, {"step_frames": 2}, r"rollout.steps_per_window is 4, .* in 3 windows"),
    ({"pushforward": 5}, {}, r"rollout.pushforward is 5, and at most 4 steps go before the last one"),
    ({"noise": 0.1}, {"step_frames": 6}, r"training.step_frames is 6, and a window of .* has 5 frames to predict"),
)


@pytest.mark.parametrize(("keys", "training", "message"), WRONG)
def test_keys_that_do_not_go_with_the_data_are_refused_before_anything_is_written(
    store: Path, tmp_path: Path, keys: dict[str, Any], training: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        train(make_recipe(store, keys, **training), RunFolder(tmp_path / "run"))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_keys_of_a_steady_problem_are_refused_by_name(tiny_recipe: Recipe, tmp_path: Path) -> None:
    recipe = load_recipe(tiny_recipe, {"rollout.noise": 0.1, "rollout.target": "increment"})
    with pytest.raises(ConfigError, match=r"rollout.target, rollout.noise: of rollouts, and .* holds a steady problem"):
        train(recipe, RunFolder(tmp_path / "run"))
    made = load_recipe("darcy_smoke", {"rollout.frames_in": 1})
    with pytest.raises(ConfigError, match=r"rollout.frames_in: of rollouts"):
        data_shape(made)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rollout.pairs": "all"}, r"rollout.*pairs all: there are no steps .* set rollout.frames_in, such as 1"),
        ({"rollout.noise": -1}, r"rollout.noise: .*greater than or equal to 0"),
        ({"rollout.frames_in": 0}, r"rollout.frames_in: .*greater than 0"),
        ({"rollout.target": "delta"}, r"rollout.target: .*'frame' or 'increment'"),
        ({"rollout.push_forward": 1}, r"unknown key rollout.push_forward; did you mean 'pushforward'"),
    ],
)
def test_wrong_values_are_refused_when_the_recipe_is_read(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe("rollout", {"data.store": "not_there.zarr", "model.domain": "3d", **keys})
