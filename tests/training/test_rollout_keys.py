"""The keys `rollout` of a recipe: each changes what it says and nothing else, for every model alike."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import geomano_hpc as gm
from geomano_hpc.config import Recipe, RolloutConfig, load_recipe
from geomano_hpc.data import Batch, GlobalBatch, Normaliser, Signature, Split
from geomano_hpc.errors import ConfigError
from geomano_hpc.launch.study import digest
from geomano_hpc.training import steps
from geomano_hpc.training.callbacks import Callback, Progress
from geomano_hpc.training.evaluate import load_trained
from geomano_hpc.training.loop import train
from geomano_hpc.training.losses import relative_l2
from geomano_hpc.training.predict import load_predictor
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.records.weights import load_alone
from geomano_hpc.training.rollouts import Rollout, Share, increments_of, seed_of_noise
from geomano_hpc.training.shapes import data_shape
from geomano_hpc.training.tasks import Task
from tests.support.forked_ranks import Farm
from tests.support.rollouts import FRAMES_IN, FRAMES_OUT, make_drifting_store
from tests.support.training_runs import mean_error, step_losses, what_a_run_computed

CPU = torch.device("cpu")
LAST = FRAMES_IN + FRAMES_OUT  # frames are called 1, 2, ... here
EVERYTHING = {
    "target": "increment",
    "frames_in": 1,
    "noise": 0.03,
    "steps_per_window": 2,
    "pairs": "all",
    "pushforward": 1,
}
MODELS: dict[str, dict[str, Any]] = {
    "geomano": {"name": "geomano", "domain": "3d", "depth": 1, "embedding": 8, "dstate": 2},
    "fno": {"name": "fno", "depth": 1, "embedding": 4, "modes": 2},
    "uno": {"name": "uno", "embedding": 4, "modes": 2},
    "transolver": {"name": "transolver", "depth": 1, "embedding": 8, "heads": 2, "slices": 4},
    "own": {"name": "tests.support.rollouts:Pointwise"},
}


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


def make_recipe(store: Path, keys: dict[str, Any], model: str = "own", **training: Any) -> Recipe:
    changes = {
        "data.store": str(store),
        "model": MODELS[model],
        "training": {"engine": "torch", "epochs": 2, "figures_every": 0, "log_every": 1, **training},
        "rollout": keys,
    }
    return load_recipe("rollout", changes)


def frames_by_hand(folder: RunFolder, given_BHWC: torch.Tensor, frames: int) -> np.ndarray:
    """From the weights and the card alone: every frame is the last one and the model's output of it."""
    alone = load_alone(folder.weights_file)
    known, increments = alone.signature, alone.signature.increments
    assert increments is not None
    model = load_predictor(folder.recipe(), folder.weights_file, "cpu").model
    mean, std = (np.array(values, np.float32) for values in vars(known.input_normaliser).values())
    add, scale = (np.array(values, np.float32) for values in vars(increments).values())
    given = given_BHWC.numpy()
    last, context = given[..., 4:6], given[..., 6:]
    found: list[np.ndarray] = []
    while len(found) < frames:
        seen = (np.concatenate([last, context], -1) - mean[4:]) / std[4:]
        with torch.no_grad():
            output = model(torch.from_numpy(seen)).numpy()
        step = np.split(np.tile(last, known.step_frames) + output * scale + add, known.step_frames, axis=-1)
        found += step
        last = step[-1]
    return np.concatenate(found[:frames], axis=-1)


@pytest.mark.parametrize("step_frames", [1, 2])
def test_increments_of_the_last_frame_are_evaluated_and_predicted_as_a_loop_by_hand_does(
    store: Path, tmp_path: Path, step_frames: int
) -> None:
    folder = RunFolder(tmp_path / "run")
    recipe = make_recipe(store, {"target": "increment", "frames_in": 1}, "geomano", step_frames=step_frames)
    result = train(recipe, folder)
    model, judged = load_trained(folder)
    batch = judged.split.batch(torch.arange(len(judged.split)))
    expected = torch.from_numpy(frames_by_hand(folder, batch.input_BHWC, FRAMES_OUT))
    assert torch.allclose(judged.predict(model, batch, CPU), expected, rtol=1e-4, atol=1e-3)
    by_field = [relative_l2(expected[..., f::2], batch.target_BHWC[..., f::2]).mean().item() for f in range(2)]
    assert result["rel_l2"] == pytest.approx(np.mean(by_field), rel=1e-4)
    assert mean_error(model, judged, 3) == pytest.approx(result["rel_l2"], rel=1e-6)
    loaded = gm.load(folder.path, device="cpu")
    assert (loaded.in_channels, loaded.out_channels) == (2 * FRAMES_IN + 2, 2 * step_frames)
    assert torch.allclose(loaded.predict(batch.input_BHWC), expected, rtol=1e-4, atol=1e-3)
    longer = loaded.predict(batch.input_BHWC, steps=8)
    assert np.allclose(longer, frames_by_hand(folder, batch.input_BHWC, 8), rtol=1e-4, atol=1e-3)
    alone = gm.load(folder.weights_file, device="cpu")
    assert torch.equal(alone.predict(batch.input_BHWC), loaded.predict(batch.input_BHWC))


def test_increments_have_the_mean_and_deviation_of_the_training_split(store: Path, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    train(make_recipe(store, {"target": "increment"}, epochs=1, step_frames=2), folder)
    known = load_alone(folder.weights_file).signature
    frames = torch.cat([torch.cat(pair, -1) for pair in _pairs(store)]).double()
    windows = frames.unflatten(-1, (LAST, 2))
    one = torch.stack([windows[..., s, :] - windows[..., s - 1, :] for s in (3, 5, 7)])
    two = torch.stack([windows[..., s + 1, :] - windows[..., s - 1, :] for s in (3, 5)])  # the last has none
    expected = [
        (found[..., f].mean().item(), found[..., f].std(unbiased=False).item())
        for found in (one, two)
        for f in range(2)
    ]
    assert known.increments is not None
    assert known.increments.mean == pytest.approx([mean for mean, _ in expected], rel=1e-5)
    assert known.increments.std == pytest.approx([std for _, std in expected], rel=1e-5)


def _pairs(store: Path) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    dataset = gm.open_dataset(store, split="train")
    for number in range(len(dataset)):
        given, target = dataset[number]
        yield given[None, ..., : 2 * FRAMES_IN], target[None]


def test_a_field_at_rest_has_increments_that_can_be_learnt() -> None:
    known = Signature("rollout", ("u",), ("u",), Normaliser(0.0, 1.0), Normaliser(0.0, 1.0), (), 2, 2)
    split = Split(known, torch.ones(3, 4, 4, 2), torch.ones(3, 4, 4, 2))
    assert increments_of(split, RolloutConfig()) == Normaliser(0.0, 1.0)


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_trained_with_all_keys_and_gives_frames(store: Path, tmp_path: Path, model: str) -> None:
    folder = RunFolder(tmp_path / "run")
    result = train(make_recipe(store, EVERYTHING, model, epochs=1), folder)
    given, target = gm.open_dataset(store, split="test")[:]
    found = gm.load(folder.path, device="cpu").predict(given)
    errors = torch.stack([relative_l2(found[..., f::2], target[..., f::2]) for f in range(2)])
    assert errors.mean().item() == pytest.approx(result["rel_l2"], rel=1e-4)
    assert errors.mean() < 0.6  # a step of one mean increment at a time


@pytest.mark.parametrize(("model", "kind"), [("geomano", "pt2"), ("geomano", "onnx"), ("fno", "pt2")])
@pytest.mark.slow(10)
def test_exported_model_gives_frames(store: Path, tmp_path: Path, model: str, kind: str) -> None:
    folder = RunFolder(tmp_path / "run")
    train(make_recipe(store, EVERYTHING, model, epochs=1), folder)
    run, file = gm.load(folder.path, device="cpu"), tmp_path / f"run.{kind}"
    card = run.export(file, steps=3)
    given = gm.open_dataset(store, split="test")[0][0][None]
    assert (card["input"], card["output"]) == ([1, 8, 8, 2 * FRAMES_IN + 2], [1, 8, 8, 2 * 3])
    if kind == "pt2":
        found = torch.export.load(file).module()(given).numpy()
    else:
        onnxruntime = pytest.importorskip("onnxruntime")
        (found,) = onnxruntime.InferenceSession(file).run(None, {"fields": given.numpy()})
    np.testing.assert_allclose(found, run.predict(given, steps=3), rtol=1e-4, atol=1e-2)


class Watching(Callback):
    def __init__(self) -> None:
        self.seen: list[Progress] = []

    def on_step(self, progress: Progress) -> None:
        self.seen.append(progress)


def test_schedule_counts_the_steps_within_a_rollout(store: Path, tmp_path: Path) -> None:
    """18 windows in batches of 4, each of five frames in steps of two, two and one."""
    watching, folder = Watching(), RunFolder(tmp_path / "run")
    recipe = make_recipe(store, {"steps_per_window": 2}, epochs=2, batch_size=4, scheduler="cosine", lr=1e-2)
    train(recipe, folder, [watching])
    assert [one.step for one in watching.seen] == list(range(1, 2 * 5 * 3 + 1))
    assert {one.total_steps for one in watching.seen} == {30}
    assert list(step_losses(folder, "lr").values()) == pytest.approx(
        [1e-2 * (1 + np.cos(np.pi * step / 30)) / 2 for step in range(30)], rel=1e-4
    )
    losses = [line["train_loss"] for line in folder.metrics()]
    per_step = np.array(list(step_losses(folder).values())).reshape(2, 5, 3)
    samples, windows = np.array([4, 4, 4, 4, 2])[None, :, None], np.array([2, 2, 1])
    assert losses == pytest.approx((per_step * samples * windows).sum((1, 2)) / (18 * 5), rel=1e-5)


def steps_of(recipe: Recipe, folder: RunFolder, monkeypatch: pytest.MonkeyPatch, die_at: int = 0) -> None:
    original, taken = steps.Steps.take, [0]

    def dying(self: steps.Steps, batch: GlobalBatch, loaded: Iterator[Batch]) -> steps.Taken:
        if (batch.epoch - 1) * self.per_epoch + batch.step + 1 == die_at:
            raise KeyboardInterrupt
        taken[0] += 1
        return original(self, batch, loaded)

    with monkeypatch.context() as patch:
        patch.setattr(steps.Steps, "take", dying)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, folder)


@pytest.mark.parametrize(("die_at", "accumulate"), [(2, 1), (11, 2), (16, 1), (23, 2)])
def test_killed_inside_a_rollout_it_ends_bit_equal(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, die_at: int, accumulate: int
) -> None:
    recipe = make_recipe(store, EVERYTHING, batch_size=8, checkpoint_steps=1, accumulate=accumulate)
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    train(recipe, whole)
    steps_of(recipe, killed, monkeypatch, die_at)
    train(recipe, killed)
    assert what_a_run_computed(killed) == what_a_run_computed(whole)


@pytest.mark.parametrize("engine", [{"engine": "torch"}, {"engine": "deepspeed", "zero": 3}])
def test_two_ranks_follow_the_curve_of_one(store: Path, tmp_path: Path, ranks: Farm, engine: dict[str, Any]) -> None:
    """18 samples in batches of 4: the second rank has fewer, and noise of its own samples."""
    alone, together = RunFolder(tmp_path / "alone"), RunFolder(tmp_path / "together")
    expected = train(make_recipe(store, EVERYTHING, "fno"), alone)["rel_l2"]
    ranks.train(make_recipe(store, EVERYTHING, "fno", **engine), together.path)
    assert step_losses(together) == pytest.approx(step_losses(alone), rel=1e-4)
    result = together.result()
    assert result is not None
    assert result["rel_l2"] == pytest.approx(expected, rel=1e-4)


def test_parts_and_streams_of_a_batch_give_the_same_numbers(store: Path, tmp_path: Path) -> None:
    folders = {name: RunFolder(tmp_path / name) for name in ("whole", "parts", "streamed")}
    recipe = make_recipe(store, EVERYTHING)
    train(recipe, folders["whole"])
    train(make_recipe(store, EVERYTHING, accumulate=3), folders["parts"])
    train(load_recipe(recipe, {"data.loading": "stream"}), folders["streamed"])
    assert folders["streamed"].weights_file.read_bytes() == folders["whole"].weights_file.read_bytes()
    assert step_losses(folders["parts"]) == pytest.approx(step_losses(folders["whole"]), rel=1e-5)


def test_a_training_from_coarse_to_fine_takes_the_keys(navier_stokes_store: Path, tmp_path: Path) -> None:
    recipe = make_recipe(navier_stokes_store, EVERYTHING, "fno", resolutions=[[4, 1], [8, 1]])
    folder = RunFolder(tmp_path / "run")
    result = train(recipe, folder)
    assert [line["points"] for line in folder.metrics()] == [4, 8]
    model, judged = load_trained(folder)
    assert mean_error(model, judged, 2) == pytest.approx(result["rel_l2"], rel=1e-6)
    coarse, _ = load_trained(folder, resolution=4)
    assert coarse is not None


@pytest.mark.parametrize("key", ["noise", "steps_per_window", "pairs", "pushforward"])
def test_keys_of_training_change_the_weights_and_not_how_the_model_is_called(
    store: Path, tmp_path: Path, key: str
) -> None:
    base = {"frames_in": 1, "target": "increment"}
    plain, other = RunFolder(tmp_path / "plain"), RunFolder(tmp_path / "other")
    train(make_recipe(store, base, epochs=1), plain)
    train(make_recipe(store, {**base, key: EVERYTHING[key]}, epochs=1), other)
    known, found = load_alone(plain.weights_file), load_alone(other.weights_file)
    assert any(not torch.equal(known.weights[name], found.weights[name]) for name in known.weights)
    if key == "pairs":  # of these pairs are the deviations, too
        known.signature.__dict__.pop("increments"), found.signature.__dict__.pop("increments")
    assert vars(known.signature) == vars(found.signature)


def test_without_keys_nothing_is_new(store: Path, tmp_path: Path) -> None:
    plain, said = RunFolder(tmp_path / "plain"), RunFolder(tmp_path / "said")
    usual = {"target": "frame", "noise": 0.0, "pairs": "window", "pushforward": 0}
    recipes = [make_recipe(store, {}, epochs=1), make_recipe(store, usual, epochs=1)]
    assert recipes[0] == recipes[1]
    assert digest(recipes[0]) == digest(recipes[1])
    assert digest(recipes[0]) != digest(make_recipe(store, {"noise": 0.1}, epochs=1))
    for recipe, folder in zip(recipes, (plain, said), strict=True):
        train(recipe, folder)
    assert plain.weights_file.read_bytes() == said.weights_file.read_bytes()
    known = load_alone(plain.weights_file).signature
    assert known == Signature.from_json(known.to_json())
    assert not {"last_frames", "increments"} & set(known.to_json())
    text = plain.config_file.read_text()
    before = text[: text.index("rollout:")] + text[text.index("compute:") :]  # as an older version wrote it
    plain.config_file.write_text(before)
    assert plain.recipe() == recipes[0]
    train(recipes[0], plain)  # and it is the same run


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
