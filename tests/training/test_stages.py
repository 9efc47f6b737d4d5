"""Coarse to fine: stages on fewer points, the same samples in the same order, exact resume inside any of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from geomano_hpc.config import Recipe, load_recipe
from geomano_hpc.data import Batch, GlobalBatch, Split, load_split
from geomano_hpc.data.resolution import stride_within
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import ConfigError, DataError
from geomano_hpc.models.geomano import GeoMaNO
from geomano_hpc.training import steps
from geomano_hpc.training.evaluate import load_trained
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.run_folder import RunFolder
from tests.support.forked_ranks import Farm
from tests.support.training_runs import changed, mean_error, what_a_run_computed

STAGES = [[5, 2], [9, 1]]  # the tiny store has 9 x 9 points


@pytest.fixture
def recipe(tiny_recipe: Recipe) -> Recipe:
    return changed(tiny_recipe, engine="torch", log_every=1, resolutions=STAGES)


def taken(recipe: Recipe, folder: RunFolder, monkeypatch: pytest.MonkeyPatch, die_at: int = 0) -> list[object]:
    """Epoch, samples, grid and spacing of every step; `die_at`: before which step (from 1) the training dies."""
    seen: list[object] = []
    original, loss_parts = steps.Steps.take, GeoMaNO.forward

    def watching(self: steps.Steps, batch: GlobalBatch, loaded: Iterator[Batch]) -> steps.Taken:
        if len(seen) + 1 == die_at:
            raise KeyboardInterrupt
        seen.append([batch.epoch, batch.samples.tolist()])
        return original(self, batch, loaded)

    def forward(self: GeoMaNO, x_BHWC: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            seen[-1] += [tuple(x_BHWC.shape[1:3]), self.where.spacing]  # type: ignore[operator]
        return loss_parts(self, x_BHWC)

    with monkeypatch.context() as patch:
        patch.setattr(steps.Steps, "take", watching)
        patch.setattr(GeoMaNO, "forward", forward)
        if die_at:
            with pytest.raises(KeyboardInterrupt):
                train(recipe, folder)
        else:
            train(recipe, folder)
    return seen


def test_each_stage_has_its_grid_and_the_samples_of_a_training_without_stages(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = taken(recipe, RunFolder(tmp_path / "staged"), monkeypatch)
    plain = taken(changed(recipe, resolutions=None), RunFolder(tmp_path / "plain"), monkeypatch)
    assert [one[:2] for one in staged] == [one[:2] for one in plain]  # type: ignore[index]
    coarse, fine = [(5, 5), (2.0, 2.0)], [(9, 9), (1.0, 1.0)]
    assert [one[2:] for one in staged] == [coarse] * 6 + [fine] * 3  # type: ignore[index]
    metrics = RunFolder(tmp_path / "staged").metrics()
    assert [line["points"] for line in metrics] == [5, 5, 9]
    assert [line["lr"] for line in metrics] == [line["lr"] for line in RunFolder(tmp_path / "plain").metrics()]


def test_it_is_judged_on_the_grid_of_the_data(recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    result = train(recipe, folder)
    model, task = load_trained(folder)
    assert task.split.grid == (9, 9)
    assert isinstance(model, GeoMaNO)
    assert model.where.spacing == (1.0, 1.0)
    assert mean_error(model, task, 4) == pytest.approx(result["rel_l2"], rel=1e-6)


@pytest.mark.parametrize("step", [2, 5, 7, 8])
def test_killed_in_any_stage_it_ends_bit_equal(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    recipe = changed(recipe, checkpoint_steps=2)
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    train(recipe, whole)
    taken(recipe, killed, monkeypatch, die_at=step)
    train(recipe, killed)
    assert what_a_run_computed(killed) == what_a_run_computed(whole)


def test_streamed_samples_are_the_same(recipe: Recipe, tmp_path: Path) -> None:
    memory, streamed = RunFolder(tmp_path / "memory"), RunFolder(tmp_path / "streamed")
    train(recipe, memory)
    content = recipe.model_dump()
    content["data"]["loading"] = "stream"
    train(Recipe.model_validate(content), streamed)
    assert memory.weights_file.read_bytes() == streamed.weights_file.read_bytes()


def test_two_ranks_follow_the_curve_of_one(recipe: Recipe, tmp_path: Path, ranks: Farm) -> None:
    alone, together = RunFolder(tmp_path / "alone"), RunFolder(tmp_path / "together")
    expected = train(recipe, alone)["rel_l2"]
    ranks.train(recipe, together.path)
    result = together.result()
    assert result is not None
    assert result["rel_l2"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("model", ["fno", "uno"])
def test_other_models_of_any_grid_begin_coarse_too(recipe: Recipe, tmp_path: Path, model: str) -> None:
    content = changed(recipe, resolutions=[[5, 1], [9, 2]]).model_dump() | {
        "model": {"name": model, "embedding": 4, "modes": 2}
    }
    folder = RunFolder(tmp_path / "run")
    assert train(Recipe.model_validate(content), folder)["rel_l2"] > 0
    assert [line["points"] for line in folder.metrics()] == [5, 9, 9]


def test_a_coarser_split_has_every_nth_point(darcy_store: Path) -> None:
    whole = load_split(open_store(darcy_store), "train")
    coarse = whole.coarser(2)
    samples = torch.tensor([3, 1])
    assert coarse.grid == (5, 5)
    for one, other in zip(coarse.batch(samples).to(torch.device("cpu")), _fields(whole, samples), strict=True):
        assert torch.equal(one, other[:, ::2, ::2])
    fine, fewer = whole.signature.axes[0], coarse.signature.axes[0]
    assert fine.spacing is not None
    assert (fewer.points, fewer.spacing, fewer.start) == (5, 2 * fine.spacing, fine.start)
    assert stride_within(open_store(darcy_store), 5) == 2


def _fields(split: Split, samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return split.batch(samples).to(torch.device("cpu"))


@pytest.mark.parametrize(
    ("stages", "error", "message"),
    [
        ([[4, 2], [9, 1]], DataError, r"every n-th one gives 3, 5, 9, but not 4; choose one of these"),
        ([[9, 2], [5, 1]], ConfigError, r"training.resolutions ends on 5 points, and .* has 9 along its longer side"),
    ],
)
def test_grids_that_do_not_fit_are_refused(
    recipe: Recipe, tmp_path: Path, stages: list[list[int]], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        train(changed(recipe, resolutions=stages), RunFolder(tmp_path / "run"))


def test_stages_last_as_long_as_the_training() -> None:
    with pytest.raises(ConfigError, match=r"stages of 7 epochs together, and training.epochs is 20: make them equal"):
        load_recipe("darcy_smoke", ["training.resolutions=[[22, 4], [43, 3]]", "training.epochs=20"])


def test_a_model_that_is_tied_to_a_grid_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    content = recipe.model_dump()
    content["model"] |= {"encoder": "global", "patch": 3}
    with pytest.raises(ConfigError, match=r"training.resolutions: .* is tied to one grid"):
        train(Recipe.model_validate(content), RunFolder(tmp_path / "run"))
