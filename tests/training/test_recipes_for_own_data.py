"""The recipes steady, line and rollout need nothing but a store: its card says the rest."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import geomano_hpc as gm
from geomano_hpc.config import Recipe, load_recipe
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.conversion.splits import SplitRule
from geomano_hpc.data_prep.problems import own_problem
from geomano_hpc.errors import ConfigError, DataError
from geomano_hpc.training import loop
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.distributed.world import join
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.setup import set_up
from geomano_hpc.training.tasks import Task
from tests.support.training_runs import changed

SMALL = ("model.depth=1", "model.embedding=8", "model.dstate=2", "training.epochs=1", "training.engine=torch")
KINDS = ("planes", "lines", "planes in time", "lines in time", "volumes")


def random(*shape: int, seed: int = 0) -> np.ndarray:
    values: np.ndarray = np.random.default_rng(seed).standard_normal(shape)
    return values


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each with two fields to predict, a constant, a validation split, and a periodic boundary along y or x."""
    folder, made = tmp_path_factory.mktemp("own"), {}
    for kind in KINDS:
        grid = {"planes": (5, 6), "lines": (16,), "volumes": (3, 4, 5)}[kind.split()[0]]
        steps = (6,) if kind.endswith("in time") else ()
        raw = {name: random(10, *steps, *grid, seed=seed) for seed, name in enumerate("uv")}
        raw |= {name: random(10, *grid, seed=seed) for seed, name in enumerate("kf", start=2)}
        file = folder / f"{kind}.npz"
        np.savez(file, c=np.arange(10.0), **raw)  # type: ignore[arg-type]
        space = "x y z"[: 2 * len(grid) - 1]
        settings: dict[str, Any] = {"axes": f"sample {space},sample {'t ' if steps else ''}{space}"}
        if steps:
            settings |= {"frames_in": 2, "frames_out": 2, "window_stride": 1}
        settings["boundary"] = {"*": "open", "xy"[len(grid) > 1]: "periodic"}
        fields = (["k", "f"], ["u", "v"], ["c"])
        rule = SplitRule(6, 2, 2)
        own = own_problem("rollout" if steps else "steady", kind.replace(" ", "_"), *fields, rule, **settings)
        made[kind] = folder / f"{kind.replace(' ', '_')}.zarr"
        convert([file], own, made[kind])
    return made


def recipe(name: str, store: Path, *changes: str) -> Recipe:
    return load_recipe(name, [f"data.store={store}", *SMALL, "training.figures_every=0", *changes])


def model_of(found: Recipe) -> dict[str, Any]:
    return found.model.model_dump(mode="json")


@pytest.mark.parametrize(
    ("name", "kind", "domain", "channels"),
    [
        ("steady", "planes", "2d", (3, 2)),
        ("steady", "lines", "1d", (3, 2)),
        ("line", "lines", "1d", (3, 2)),
        ("line", "lines in time", "1d", (2 * 2 + 3, 2)),
        ("rollout", "planes in time", "3d", (2 * 2 + 3, 2)),
        ("rollout", "lines in time", "1d", (2 * 2 + 3, 2)),
    ],
)
def test_domain_channels_and_boundary_are_those_of_the_card(
    name: str, kind: str, domain: str, channels: tuple[int, int], stores: dict[str, Path]
) -> None:
    found = recipe(name, stores[kind])
    assert model_of(found)["domain"] == domain
    assert model_of(found)["orders"] == ("sequence" if domain == "1d" else "corners" if name == "steady" else "paper")
    ranks = Ranks(0, 1, 0)
    join(ranks)
    made = set_up(found, ranks)
    known = made.task.signature
    assert (known.in_channels, known.out_channels) == channels
    assert known.boundary == (("unknown", "periodic") if "lines" in kind else ("open", "periodic"))
    assert made.chooses_best
    parts = made.task.loss_parts(made.engine.model, torch.arange(2), torch.device("cpu"))
    assert torch.isfinite(parts.total)
    assert parts.gradient is None


@pytest.mark.parametrize("name", ["steady", "line", "rollout"])
def test_recipes_for_own_data_say_nothing_of_a_domain_boundary_or_gradient(name: str) -> None:
    found = load_recipe(name, ["data.store=not_there.zarr"])
    assert found.loss.gradient_weight == 0.0
    assert found.data.generate is None
    assert (found.data.train_samples, found.data.validation_samples, found.data.test_samples) == (None, None, None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("steady", "planes"), ("steady", "lines"), ("line", "lines"), ("rollout", "planes in time")],
)
def test_recipe_trains_a_store_with_no_further_key_of_the_problem(
    name: str, kind: str, stores: dict[str, Path], tmp_path: Path
) -> None:
    result = train(recipe(name, stores[kind]), RunFolder(tmp_path / "run"))
    assert result["problem"] == kind.replace(" ", "_")
    assert set(result["rel_l2_by_field"]) == {"u", "v"}
    assert np.isfinite(result["rel_l2"])
    assert (result["split"], result["weights"]) == ("test", "best")
    assert gm.load(tmp_path / "run", device="cpu").recipe == recipe(name, stores[kind])


def test_recipe_without_its_store_says_that_the_domain_is_open(tmp_path: Path) -> None:
    """A recipe may be read before its data is there; nothing is guessed."""
    missing = recipe("steady", tmp_path / "not_there.zarr")
    assert model_of(missing)["domain"] == "auto"
    with pytest.raises(DataError, match="no such store"):
        train(missing, RunFolder(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "kind"), [("line", "planes"), ("line", "planes in time")])
def test_recipe_of_lines_refuses_planes_before_anything_is_written(
    name: str, kind: str, stores: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"domain"):
        train(recipe(name, stores[kind]), RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("name", ["steady", "line", "rollout"])
def test_volumes_are_refused_before_a_training(name: str, stores: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"volumes.*(3 x 4 x 5|no model here takes them)"):
        train(recipe(name, stores["volumes"]), RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


class Counted:
    """How often, and on which samples, a training is judged."""

    def __init__(self) -> None:
        self.judged: list[tuple[int, float]] = []

    def __call__(self, network: Any, task: Task, *arguments: Any) -> Any:
        found = self.evaluate(network, task, *arguments)
        self.judged.append((id(task.split), found.rel_l2))
        return found

    evaluate = staticmethod(loop.evaluate)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    one = Counted()
    monkeypatch.setattr(loop, "evaluate", one)
    return one


def test_best_is_chosen_on_the_validation_split_and_the_test_split_is_judged_once(
    stores: dict[str, Path], tmp_path: Path, counted: Counted
) -> None:
    folder = RunFolder(tmp_path / "run")
    result = train(changed(recipe("steady", stores["planes"]), epochs=4, lr=0.3), folder)
    splits = [split for split, _ in counted.judged]
    assert splits[:4] == [splits[0]] * 4
    assert splits[4:] == [splits[4]] != [splits[0]]
    errors = [error for _, error in counted.judged[:4]]
    assert result["validation_rel_l2"] == min(errors)
    assert result["best_epoch"] == 1 + errors.index(min(errors))
    assert result["rel_l2"] == counted.judged[4][1]
    lines = folder.metrics()
    assert [line["validation_rel_l2"] for line in lines] == errors
    assert [line["test_rel_l2"] for line in lines] == [None] * 4
    assert folder.best_weights_file.is_file()


def test_without_a_validation_split_nothing_is_chosen(tmp_path: Path, counted: Counted) -> None:
    np.savez(tmp_path / "raw.npz", k=random(8, 5, 6), u=random(8, 5, 6, seed=1))
    settings = own_problem("steady", "mine", ["k"], ["u"], [], SplitRule(train=6, test=2))
    convert([tmp_path / "raw.npz"], settings, tmp_path / "s.zarr")
    folder = RunFolder(tmp_path / "run")
    result = train(changed(recipe("steady", tmp_path / "s.zarr"), epochs=4, lr=0.3), folder)
    errors = [error for _, error in counted.judged]
    assert len(errors) == 4
    assert result["rel_l2"] == errors[-1]
    assert (result["weights"], result["split"]) == ("last", "test")
    assert not {"best_epoch", "validation_rel_l2", "best_rel_l2"} & result.keys()
    assert not folder.best_weights_file.exists()


@pytest.fixture(scope="module")
def lines_run(stores: dict[str, Path]) -> Path:
    torch.set_num_threads(1)
    out = stores["lines"].with_name("lines_run")
    train(recipe("line", stores["lines"]), RunFolder(out))
    return out


def test_lines_are_predicted_as_lines(lines_run: Path) -> None:
    """Several of them in one array are never taken for one plane."""
    run = gm.load(lines_run, device="cpu")
    given = random(5, 16, 3, seed=8)
    expected = run.predict(given[:, None])
    assert expected.shape == (5, 1, 16, 2)
    assert np.allclose(run.predict(given).reshape(expected.shape), expected, rtol=1e-4, atol=1e-6)
    assert np.allclose(run.predict(given[0]).reshape(expected[0].shape), expected[0], rtol=1e-4, atol=1e-6)


def test_lines_of_one_field_need_no_further_axes(tmp_path: Path) -> None:
    """[samples, W] is not a plane, as it is for a model of planes."""
    np.savez(tmp_path / "raw.npz", k=random(8, 16), u=random(8, 16, seed=1))
    settings = own_problem("steady", "mine", ["k"], ["u"], [], SplitRule(train=6, test=2))
    convert([tmp_path / "raw.npz"], settings, tmp_path / "s.zarr")
    train(recipe("line", tmp_path / "s.zarr"), RunFolder(tmp_path / "run"))
    run = gm.load(tmp_path / "run", device="cpu")
    lines = random(5, 16, seed=8)
    expected = run.predict(lines[:, None, :, None])[:, 0, :, 0]
    for given in (lines, lines[:, None], lines[..., None]):
        found = run.predict(given)
        assert found.shape == given.shape
        assert np.allclose(found.reshape(5, 16), expected, rtol=1e-4, atol=1e-6)
    assert np.allclose(run.predict(lines[0]), expected[0], rtol=1e-4, atol=1e-6)


@pytest.mark.slow(20)
@pytest.mark.parametrize("name", ["steady", "rollout"])
def test_recipe_learns_a_real_problem_much_better_than_its_mean(name: str, tmp_path: Path) -> None:
    """-u'' + u = f on a periodic grid, and waves that are carried along, with fewer layers and epochs."""
    samples, n = 40, 12
    rng = np.random.default_rng(0)
    k = np.fft.fftfreq(n, 1 / n)
    squared = k[:, None] ** 2 + k[None, :] ** 2
    coarse = np.fft.fft2(rng.standard_normal((samples, n, n))) * np.exp(-squared / 8)
    coarse[:, 0, 0] = 0
    f = np.fft.ifft2(coarse).real
    if name == "steady":
        raw = {"f": 1e3 * f, "u": np.fft.ifft2(coarse / (1 + squared)).real}
        settings = own_problem("steady", "screened", ["f"], ["u"], [], SplitRule(), boundary={"*": "periodic"})
    else:
        raw = {"c": np.stack([np.roll(f, step, axis=1) for step in range(6)], axis=1)}
        frames: dict[str, Any] = {"frames_in": 2, "frames_out": 2, "axes": "sample t x y", "window_stride": 1}
        settings = own_problem("rollout", "carried", [], ["c"], [], SplitRule(), **frames)
    np.savez(tmp_path / "raw.npz", **raw)  # type: ignore[arg-type]
    convert([tmp_path / "raw.npz"], settings, tmp_path / "s.zarr")
    changes = [
        f"data.store={tmp_path}/s.zarr",
        "training.epochs=8",
        "training.engine=torch",
        "training.figures_every=0",
    ]
    result = train(load_recipe(name, [*changes, "model.depth=2"]), RunFolder(tmp_path / "run"))
    target = gm.open_dataset(tmp_path / "s.zarr", split="test")[:][1].numpy()
    mean = gm.open_dataset(tmp_path / "s.zarr", split="train")[:][1].numpy().mean()
    axes = (1, 2, 3)
    of_the_mean = np.sqrt(np.square(target - mean).sum(axes) / np.square(target).sum(axes)).mean()
    assert of_the_mean > 0.8
    assert result["rel_l2"] < 0.5 * of_the_mean
