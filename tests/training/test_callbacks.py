"""Code of the user's during a training: when it is called, with what, and what its mistakes do."""

import re
from pathlib import Path

import pytest
import torch

from geomano_hpc.config import Recipe, to_yaml
from geomano_hpc.errors import ConfigError, GeomanoError
from geomano_hpc.training.callbacks import Callback, Progress
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.run_folder import RunFolder
from tests.support.forked_ranks import Farm
from tests.support.training_runs import changed, what_a_run_computed


@pytest.fixture
def recipe(tiny_recipe: Recipe) -> Recipe:
    """Two epochs of three steps, and a checkpoint after each epoch."""
    return changed(tiny_recipe, engine="torch", epochs=2, log_every=1, figures_every=0)


class Seen(Callback):
    def __init__(self) -> None:
        self.calls: list[tuple[str, Progress]] = []

    def on_step(self, progress: Progress) -> None:
        self.calls.append(("step", progress))

    def on_epoch(self, progress: Progress) -> None:
        self.calls.append(("epoch", progress))

    def on_checkpoint(self, progress: Progress) -> None:
        self.calls.append(("checkpoint", progress))

    def on_end(self, progress: Progress) -> None:
        self.calls.append(("end", progress))


class Fails(Callback):
    """In one of its methods, at one step."""

    def __init__(self, hook: str, step: int) -> None:
        self.step = step
        setattr(self, hook, self.fail)

    def fail(self, progress: Progress) -> None:
        if progress.step == self.step:
            raise ValueError("two\nlines")


def test_callbacks_are_called_in_order_with_what_happened(recipe: Recipe, tmp_path: Path) -> None:
    seen, folder = Seen(), RunFolder(tmp_path / "run")
    result = train(recipe, folder, [seen])
    epoch = ["step"] * 3 + ["epoch", "checkpoint"]
    assert [name for name, _ in seen.calls] == [*epoch, *epoch, "end"]
    steps = [progress for name, progress in seen.calls if name == "step"]
    assert [(progress.epoch, progress.step) for progress in steps] == [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (1, 6)]
    assert all(progress.loss is not None and 0 < progress.loss < 10 for progress in steps)
    assert [progress.metrics for name, progress in seen.calls if name == "epoch"] == folder.metrics()
    saved = [progress.checkpoint for name, progress in seen.calls if name == "checkpoint"]
    assert saved == sorted(folder.checkpoints.iterdir())
    end = seen.calls[-1][1]
    assert (end.result, end.folder, end.total_steps, end.epochs) == (result, folder.path, 6, 2)
    assert sum(parameter.numel() for parameter in end.model.parameters()) == result["parameters"]
    assert train(recipe, folder, [seen]) == result
    assert len(seen.calls) == 11  # a finished run calls none


class Disturbs(Callback):
    """Draws random numbers, and leaves the model in evaluation mode."""

    def on_step(self, progress: Progress) -> None:
        torch.randn(7)
        progress.model.eval()


def test_callback_does_not_change_the_training(recipe: Recipe, tmp_path: Path) -> None:
    disturbed, undisturbed = RunFolder(tmp_path / "disturbed"), RunFolder(tmp_path / "undisturbed")
    seen = Seen()
    train(recipe, disturbed, [Disturbs(), seen])
    train(recipe, undisturbed)
    assert what_a_run_computed(disturbed) == what_a_run_computed(undisturbed)
    assert seen.calls[-1][1].model.training


@pytest.mark.parametrize(
    ("hook", "step", "saved"), [("on_step", 2, 3), ("on_step", 6, 6), ("on_epoch", 3, 3), ("on_checkpoint", 6, 6)]
)
def test_callback_that_fails_ends_the_run_by_name_with_the_state_saved(
    hook: str, step: int, saved: int, recipe: Recipe, tmp_path: Path
) -> None:
    folder, never_again = RunFolder(tmp_path / "run"), Seen()
    with pytest.raises(GeomanoError, match=rf"run: the callback Fails\.{hook} failed: ValueError: two lines$") as ended:
        train(recipe, folder, [Fails(hook, step), never_again])
    assert isinstance(ended.value.__cause__, ValueError)
    assert "in fail" in folder.log_file.read_text()  # where in the user's code
    assert not folder.is_finished
    newest = sorted(folder.checkpoints.glob("step_*"))[-1]
    assert int(newest.name[5:14]) >= saved
    train(recipe, folder)
    train(recipe, RunFolder(tmp_path / "undisturbed"))
    assert what_a_run_computed(folder) == what_a_run_computed(RunFolder(tmp_path / "undisturbed"))


def test_callback_that_fails_at_the_end_leaves_the_run_finished(recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(GeomanoError, match=r"Fails\.on_end failed"):
        train(recipe, folder, [Fails("on_end", 6)])
    assert folder.is_finished


def test_what_is_no_callback_is_refused_before_anything_starts(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"callbacks: Seen is no object of a geomano_hpc\.Callback: write Seen\(\)"):
        train(recipe, RunFolder(tmp_path / "run"), [Seen])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="callbacks: function is no object"):
        train(recipe, RunFolder(tmp_path / "run"), [lambda: None])  # type: ignore[list-item]
    assert not (tmp_path / "run").exists()


PROGRAM = """
import sys
from pathlib import Path
from geomano_hpc.config import load_recipe
from geomano_hpc.errors import GeomanoError
from geomano_hpc.training.callbacks import Callback
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.run_folder import RunFolder

class Says(Callback):
    def on_step(self, progress):
        print("step", progress.step, flush=True)
        if progress.step == 4 and sys.argv[3] == "fails":
            raise ValueError("wrong")

try:
    train(load_recipe(sys.argv[1]), RunFolder(Path(sys.argv[2])), [Says()])
except GeomanoError as error:
    print("error:", error, flush=True)
    sys.exit(error.exit_code)
"""


def test_two_ranks_call_back_once_and_end_together_where_a_callback_fails(
    ranks: Farm, recipe: Recipe, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    for how, codes, steps in (("fails", [1, 1], [1, 2, 3, 4]), ("works", [0, 0], [6])):
        both = ranks.run(["program.py", "recipe.yaml", "run", how], tmp_path / "run", 2)
        assert [rank.wait() for rank in both] == codes, [rank.said() for rank in both]
        assert [int(step) for step in re.findall(r"^step (\d+)$", both[0].said(), re.M)] == steps
        assert "step" not in both[1].said()
        assert ("error: run: the callback Says.on_step failed: ValueError: wrong" in both[0].said()) == (how == "fails")
        assert "error: " not in both[1].said()
    train(recipe, RunFolder(tmp_path / "one"))
    found, expected = (RunFolder(tmp_path / name).metrics()[-1]["train_loss"] for name in ("run", "one"))
    assert found == pytest.approx(expected, rel=1e-5)
