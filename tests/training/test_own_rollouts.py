"""Rollouts of several fields, with what does not change in time, one frame or a few at a time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import geomano_hpc as gm
from geomano_hpc.cli.app import main
from geomano_hpc.config import load_recipe
from geomano_hpc.data import Normaliser, Signature, Split
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.conversion.splits import SplitRule
from geomano_hpc.data_prep.problems import own_problem
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import ConfigError, DataError, GeomanoError
from geomano_hpc.training.evaluate import load_trained
from geomano_hpc.training.loop import train
from geomano_hpc.training.losses import gradient_loss, relative_l2
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.tasks import Task

CPU = torch.device("cpu")
IN, OUT = 3, 5
IDENTITY = Normaliser(0.0, 1.0)
KNOWN = Signature("rollout", ("u", "v"), ("u", "v"), IDENTITY, IDENTITY, ("mask", "nu"), frames_in=IN, frames_out=OUT)


class Watched(nn.Module):
    """Predicts the last frame it is shown plus 1, 2, ... of each field, and remembers the channels it was given."""

    def __init__(self, step_frames: int = 1, error: float = 0.0) -> None:
        super().__init__()
        self.step_frames, self.error = step_frames, error
        self.shown: list[list[float]] = []

    def forward(self, given_BHWC: torch.Tensor) -> torch.Tensor:
        self.shown.append(given_BHWC[0, 0, 0].tolist())
        last = given_BHWC[..., 2 * IN - 2 : 2 * IN]
        return torch.cat([last + step + self.error for step in range(1, self.step_frames + 1)], dim=-1)


def task(step_frames: int = 1, frames_out: int = OUT, **settings: Any) -> Task:
    """Frame t of u is t everywhere, and of v 100 + t; the context is -1 and -2. Two samples."""
    frames = torch.arange(1.0, IN + frames_out + 1)
    both = torch.stack([frames, 100 + frames], dim=-1).flatten().expand(2, 3, 4, -1)
    context = torch.tensor([-1.0, -2.0]).expand(2, 3, 4, 2)
    given = torch.cat([both[..., : 2 * IN], context], dim=-1)
    known = Signature(**{**vars(KNOWN), "frames_out": frames_out, "step_frames": step_frames})
    return Task(Split(known, given, both[..., 2 * IN :]), **{"gradient_weight": 0.0, **settings})


def window(*frames: float) -> list[float]:
    return [value for frame in frames for value in (frame, 100 + frame)] + [-1.0, -2.0]


def test_training_shows_true_frames_of_all_fields_and_the_same_context_at_every_step() -> None:
    model = Watched(error=0.25)
    task().loss_parts(model, torch.arange(2), CPU)
    assert model.shown == [window(t, t + 1, t + 2) for t in range(1, OUT + 1)]


def test_rollout_shows_its_own_frames_and_the_same_context_at_every_step() -> None:
    model = Watched(error=0.5)
    found = task().predict(model, torch.arange(2), CPU)
    own = [3 + 1.5 * step for step in range(1, OUT + 1)]
    assert found[0, 0, 0].tolist() == [value for frame in own for value in (frame, frame + 100)]
    seen = [1, 2, 3, *own]
    assert model.shown == [window(*seen[first : first + IN]) for first in range(OUT)]


@pytest.mark.parametrize(("m", "calls"), [(1, 5), (2, 3), (3, 2), (5, 1)])
def test_steps_of_several_frames_predict_each_frame_once(m: int, calls: int) -> None:
    """Where m does not divide the frames, the last step looks beyond them, which counts for nothing."""
    model = Watched(m)
    found = task(m).predict(model, torch.arange(2), CPU)
    assert found.shape == (2, 3, 4, 2 * OUT)
    assert found[1, 2, 3].tolist() == window(4, 5, 6, 7, 8)[:-2]
    assert model.shown == [window(*(1 + m * step + n for n in range(IN))) for step in range(calls)]
    assert task(m).errors(Watched(m), torch.arange(2), CPU).tolist() == [0, 0]


@pytest.mark.parametrize(("m", "calls"), [(1, 5), (2, 3), (3, 2), (5, 1)])
def test_steps_of_several_frames_are_trained_on_true_frames(m: int, calls: int) -> None:
    model = Watched(m, error=0.25)
    parts = task(m).loss_parts(model, torch.arange(2), CPU)
    assert model.shown == [window(*(1 + m * step + n for n in range(IN))) for step in range(calls)]
    expected = 0.0
    for step in range(calls):
        frames = torch.arange(IN + 1.0, IN + OUT + 1)[m * step : m * (step + 1)]
        for true in (frames, frames + 100):
            expected += float(relative_l2((true + 0.25).view(1, 1, 1, -1), true.view(1, 1, 1, -1))) / 2
    assert parts.total.item() == pytest.approx(2 * expected, rel=1e-5)
    assert parts.relative_l2.item() == pytest.approx(2 * expected, rel=1e-5)


def test_gradient_term_leaves_out_what_lies_beyond_the_frames_and_knows_the_boundary() -> None:
    """With m = 2 and 5 frames, the last step has one true frame."""
    frames = torch.randn(2, 6, 5, 2 * (IN + OUT))
    given = torch.cat([frames[..., : 2 * IN], torch.zeros(2, 6, 5, 2)], dim=-1)
    boundary = ("periodic", "wall")
    known = Signature(**{**vars(KNOWN), "step_frames": 2, "boundary": boundary})
    of_two = Task(Split(known, given, frames[..., 2 * IN :]), gradient_weight=1.0)
    found = of_two.loss_parts(lambda x: x[..., 2 : 2 + 4], torch.arange(2), CPU).gradient
    expected = 0.0
    for first, last in ((3, 5), (5, 7), (7, 8)):  # the frames of each step; the model repeats those two before them
        for field in range(2):
            true, before = (
                frames[..., 2 * start + field : 2 * (start + last - first) : 2] for start in (first, first - 2)
            )
            expected += float(gradient_loss(before, true, boundary).sum()) / 2
    assert found is not None
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_errors_stand_by_field_and_frame() -> None:
    """[sample, field, all frames together and then each]."""
    found = task(2).field_errors(Watched(2, error=0.5), torch.arange(2), CPU)
    assert found.shape == (2, 2, 1 + OUT)
    own = torch.tensor([0.5, 0.5, 1.0, 1.0, 1.5])  # each step adds its error to that of the last frame before it
    for field, true in enumerate((torch.arange(4.0, 9.0), torch.arange(104.0, 109.0))):
        assert found[0, field, 1:].tolist() == pytest.approx((own / true).tolist(), rel=1e-4)
        assert found[0, field, 0].item() == pytest.approx(float(own.norm() / true.norm()), rel=1e-4)


def test_each_field_of_each_frame_has_its_own_mean_and_deviation() -> None:
    mean, std = (5.0, -3.0), (7.0, 0.5)
    given = Normaliser((*mean * IN, 1.0, 2.0), (*std * IN, 3.0, 4.0))
    known = Signature(**{**vars(KNOWN), "input_normaliser": given, "target_normaliser": Normaliser(mean, std)})
    frames = torch.randn(4, 3, 4, 2 * (IN + OUT)) * torch.tensor(std * (IN + OUT)) + torch.tensor(mean * (IN + OUT))
    context = torch.tensor([4.0, 10.0]).expand(4, 3, 4, 2)
    split = Split(known.in_steps_of(2), torch.cat([frames[..., : 2 * IN], context], -1), frames[..., 2 * IN :])
    seen = []

    def network(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x[..., 2 : 2 + 4]  # the last two given frames, as they are

    found = Task(split, 0.0).predict(network, torch.arange(4), CPU)
    assert seen[0][..., :6].mean().abs() < 0.3
    assert seen[0][..., :6].std() == pytest.approx(1, abs=0.2)
    assert torch.allclose(seen[0][..., 6:], torch.tensor([1.0, 2.0]))
    assert torch.allclose(found[..., :4], frames[..., 2:6], atol=1e-4)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two fields that drift, by a constant of each sample, over a mask."""
    folder = tmp_path_factory.mktemp("own")
    rng, T = np.random.default_rng(0), 10
    nu = rng.uniform(0.5, 1.5, 8)
    start = rng.standard_normal((8, 1, 6, 7))
    drift = nu[:, None, None, None] * np.arange(T)[:, None, None]
    raw = {"u": start + drift, "v": 1000 * (2 - start - drift), "mask": rng.random((8, 6, 7)), "nu": nu}
    np.savez(folder / "raw.npz", **raw)  # type: ignore[arg-type]
    frames = {"frames_in": IN, "frames_out": OUT, "window_stride": 1, "axes": "sample x y,sample t x y"}
    settings = own_problem("rollout", "drift", ["mask"], ["u", "v"], ["nu"], SplitRule(6, None, 2), **frames)
    convert([folder / "raw.npz"], settings, folder / "drift.zarr")
    return folder / "drift.zarr"


@pytest.fixture(scope="module")
def run(store: Path) -> RunFolder:
    """Of steps of two frames, while five are predicted."""
    torch.set_num_threads(1)
    sizes = ["model.depth=1", "model.embedding=8", "model.dstate=2", "training.epochs=1", "training.engine=torch"]
    changes = [f"data.store={store}", *sizes, "training.figures_every=0", "training.step_frames=2"]
    folder = RunFolder(store.with_name("run"))
    train(load_recipe("rollout", changes), folder)
    return folder


def test_signature_of_the_store_has_a_normaliser_for_each_channel(store: Path) -> None:
    card = open_store(store).card
    known = Signature.of(card)
    assert (known.in_channels, known.window_channels, known.out_channels) == (2 * IN + 2, 2 * IN, 2)
    u, v = card.targets
    mask, nu = card.context
    expected = (*(u.mean, v.mean) * IN, mask.mean, nu.mean)
    assert known.input_normaliser.mean == expected
    assert known.in_steps_of(2).step_normaliser.std == (u.std, v.std, u.std, v.std)


def test_trained_run_predicts_what_it_was_judged_on(run: RunFolder, store: Path) -> None:
    model, judged = load_trained(run)
    assert (judged.signature.step_frames, judged.signature.frames_out) == (2, OUT)
    samples = torch.tensor([0, 3])
    expected = judged.predict(model, samples, CPU)
    loaded = gm.load(run.path, device="cpu")
    assert (loaded.inputs, loaded.targets, loaded.context) == (("u", "v"), ("u", "v"), ("mask", "nu"))
    assert (loaded.in_channels, loaded.out_channels, loaded.frames) == (2 * IN + 2, 4, 2 * OUT)
    given = judged.split.batch(samples).input_BHWC
    assert torch.allclose(loaded.predict(given), expected, rtol=1e-4, atol=1e-5)
    pairs = gm.open_dataset(store, split="test")
    assert torch.equal(pairs[3][0], given[1])
    longer = loaded.predict(given, steps=7)
    assert longer.shape == (2, 6, 7, 2 * 7)
    assert torch.allclose(longer[..., : 2 * OUT], expected, rtol=1e-4, atol=1e-5)
    assert loaded.predict(given[0].numpy(), steps=1).shape == (6, 7, 2)


def test_constant_and_static_field_reach_the_prediction(run: RunFolder) -> None:
    """Each of them changes what comes out."""
    loaded = gm.load(run.path, device="cpu")
    _, judged = load_trained(run)
    given = judged.split.batch(torch.tensor([0])).input_BHWC
    for channel in (-1, -2):
        other = given.clone()
        other[..., channel] += 1
        assert not torch.allclose(loaded.predict(other), loaded.predict(given))


def test_prediction_without_its_context_names_what_is_expected(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"the model takes {2 * IN + 2} channels.*: 3 frames of u, v, mask, nu"
    with pytest.raises(DataError, match=words):
        gm.load(run.path, device="cpu").predict(np.zeros((6, 7, 2 * IN)))
    np.save(tmp_path / "frames.npy", np.zeros((6, 7, 2 * IN)))
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(run.path), "--input", str(tmp_path / "frames.npy")])
    assert ended.value.code
    assert "3 frames of u, v, mask, nu" in capsys.readouterr().err


def test_command_predicts_from_a_file_with_context(run: RunFolder, tmp_path: Path) -> None:
    _, judged = load_trained(run)
    given = judged.split.batch(torch.tensor([1])).input_BHWC
    np.save(tmp_path / "a.npy", given.numpy())
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(run.path), "--input", str(tmp_path / "a.npy"), "--frames", "3"])
    assert not ended.value.code
    expected = gm.load(run.path, device="cpu").predict(given, steps=3)
    np.testing.assert_allclose(np.load(tmp_path / "a_prediction.npy"), expected.numpy(), rtol=1e-4, atol=1e-5)


def other_store(folder: Path, fields: list[str], statics: list[str], frames_in: int) -> Path:
    rng = np.random.default_rng(1)
    raw = {name: rng.random((4, 9, 6, 7)) for name in ("u", "v")} | {name: rng.random((4, 6, 7)) for name in ("a", "b")}
    np.savez(folder / "raw.npz", **raw, nu=rng.random(4))  # type: ignore[arg-type]
    frames = {"frames_in": frames_in, "frames_out": 2, "axes": "sample x y,sample t x y"}
    settings = own_problem("rollout", "other", statics, fields, ["nu"], SplitRule(3, None, 1), **frames)
    convert([folder / "raw.npz"], settings, folder / "other.zarr")
    return folder / "other.zarr"


@pytest.mark.parametrize(
    ("fields", "statics", "frames_in"),
    [
        (["v", "u"], ["mask=a"], IN),  # the same fields in another order
        (["u", "v"], [], IN),  # a field too few
        (["u"], ["mask=a", "b"], IN + 2),  # as many channels, of something else
        (["u", "v"], ["b", "mask=a", "c=b"], IN - 1),  # as many channels, of fewer frames
    ],
)
def test_evaluation_on_a_store_of_other_fields_is_refused(
    fields: list[str], statics: list[str], frames_in: int, run: RunFolder, tmp_path: Path
) -> None:
    """What has as many channels is still not what the model was trained on."""
    data = other_store(tmp_path, fields, statics, frames_in)
    with pytest.raises(GeomanoError, match=r"other\.zarr.*trained on"):
        load_trained(run, data)


def test_evaluation_on_another_store_of_the_same_fields_takes_the_normalisers_of_the_training(
    run: RunFolder, tmp_path: Path
) -> None:
    """And predicts as many frames as that store has."""
    _, judged = load_trained(run, other_store(tmp_path, ["u", "v"], ["mask=a"], IN))
    _, own = load_trained(run)
    assert judged.signature.input_normaliser == own.signature.input_normaliser
    assert judged.signature.frames_out == 2


def test_more_frames_at_once_than_a_window_has_are_refused(store: Path, tmp_path: Path) -> None:
    changes = [f"data.store={store}", "training.engine=torch", "training.step_frames=6", "training.epochs=1"]
    with pytest.raises(ConfigError, match=r"training\.step_frames is 6, and a window of .* has 5 frames to predict"):
        train(load_recipe("rollout", changes), RunFolder(tmp_path / "run"))
