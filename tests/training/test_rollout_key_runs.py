"""Trainings with the keys `rollout` on a real store: what they judge, predict, export and go on from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import geomano_hpc as gm
from geomano_hpc.config import Recipe, RolloutConfig, load_recipe
from geomano_hpc.data import Batch, GlobalBatch, Normaliser, Signature, Split
from geomano_hpc.launch.study import digest
from geomano_hpc.training import steps
from geomano_hpc.training.callbacks import Callback, Progress
from geomano_hpc.training.evaluate import load_trained
from geomano_hpc.training.loop import train
from geomano_hpc.training.losses import relative_l2
from geomano_hpc.training.predict import load_predictor
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.records.weights import load_alone
from geomano_hpc.training.rollouts import increments_of
from tests.support.forked_ranks import Farm
from tests.support.rollouts import EVERYTHING, FRAMES_IN, FRAMES_OUT, MODELS, make_drifting_store, make_recipe
from tests.support.training_runs import mean_error, step_losses, what_a_run_computed

CPU = torch.device("cpu")
LAST = FRAMES_IN + FRAMES_OUT


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_drifting_store(tmp_path_factory.mktemp("drifting"))


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
