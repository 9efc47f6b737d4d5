"""A model of another package, by its name only: trained, stopped, resumed, evaluated, used and reported."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import geomano_hpc as gm
from geomano_hpc.cli.app import main
from geomano_hpc.launchers import Ranks
from geomano_hpc.training.evaluate import evaluate, load_trained
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.run_folder import RunFolder
from tests.support.forked_ranks import Farm
from tests.support.training_runs import back_to, changed, what_a_run_computed

# With a buffer that the training changes, a parameter that it does not, and random numbers.
NETS = """
import os, signal
import torch
from torch import nn

forwards = 0

class MyNet(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, width: int = 4, trained: bool = False):
        super().__init__()
        self.lift = nn.Conv2d(in_channels, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.project = nn.Conv2d(width, out_channels, 1)
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=trained)

    def forward(self, x):
        global forwards
        forwards += self.training
        if forwards == int(os.environ.get("STOP_AT", "-1")):
            os.kill(os.getpid(), signal.SIGTERM)
        hidden = self.norm(self.lift(x.movedim(-1, 1))).relu()
        hidden = nn.functional.dropout(hidden, 0.1, self.training)
        return self.frozen * self.project(hidden).movedim(1, -1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "own_nets_of_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "nets.py").write_text(NETS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def geomano(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(str(ended.value.code or 0))


@pytest.mark.slow
def test_model_of_another_package_is_trained_resumed_and_reported_by_name_only(
    folder: Path, darcy_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [
        f"data.store={darcy_store}",
        "data.generate=null",
        "training.engine=torch",
        "training.epochs=2",
        "training.log_every=1",
        "model.name=own_nets_of_a_test.nets:MyNet",
        "model.options.width=6",
    ]
    command = ["train", "darcy_smoke", *(word for change in changes for word in ("--set", change))]
    assert geomano(*command, "--out", "runs/undisturbed/seed-0") == 0
    run = RunFolder(folder / "runs" / "own" / "seed-0")
    sys.modules["own_nets_of_a_test.nets"].forwards = 0  # type: ignore[attr-defined]
    monkeypatch.setenv("STOP_AT", "5")
    assert geomano(*command, "--out", str(run.path)) == 75
    assert not run.is_finished
    monkeypatch.delenv("STOP_AT")
    assert geomano(*command, "--out", str(run.path)) == 0
    undisturbed = RunFolder(folder / "runs" / "undisturbed" / "seed-0")
    assert what_a_run_computed(run) == what_a_run_computed(undisturbed)

    result = run.result()
    assert result is not None
    capsys.readouterr()
    assert geomano("eval", str(run.path)) == 0
    assert f"test rel-L2 {result['rel_l2']:.5f}" in capsys.readouterr().out
    assert gm.load(run.weights()).predict(np.ones((9, 9), dtype=np.float32)).shape == (9, 9)
    assert geomano(*command, "--print-model") == 0
    assert ["total", str(result["parameters"])] in [line.split()[:2] for line in capsys.readouterr().out.splitlines()]

    shutil.rmtree(folder / "own_nets_of_a_test")  # a report needs the folder of the run only
    for name in ("own_nets_of_a_test", "own_nets_of_a_test.nets"):
        monkeypatch.delitem(sys.modules, name)
    RunFolder(folder / "runs" / "own" / "other").write_recipe(gm.load_recipe("darcy_smoke", changes[:-2]))
    assert geomano("report", "own") == 0
    assert f"{result['rel_l2']:.5f}" in capsys.readouterr().out
    assert "own_nets_of_a_test.nets:MyNet" in (folder / "runs" / "own" / "report" / "report.md").read_text()
    assert geomano("eval", str(run.path)) == 2
    assert "no module own_nets_of_a_test for own_nets_of_a_test.nets:MyNet; install it" in capsys.readouterr().err


@pytest.mark.slow
def test_buffers_are_restored_where_parameters_are_parted(folder: Path, tiny_recipe: gm.Recipe) -> None:
    model = {"name": "own_nets_of_a_test.nets:MyNet", "options": {"trained": True}}
    recipe = changed(
        gm.Recipe.model_validate({**tiny_recipe.model_dump(), "model": model}), epochs=2, zero=3, log_every=1
    )
    run = RunFolder(folder / "run")
    train(recipe, run)
    undisturbed = what_a_run_computed(run)
    back_to(3, run)
    train(recipe, run)
    assert what_a_run_computed(run) == undisturbed


@pytest.mark.ranks
@pytest.mark.slow(20)
@pytest.mark.parametrize("engine", [{"engine": "torch"}, {"zero": 1}])
def test_what_two_ranks_report_is_what_they_saved_and_go_on_with(
    engine: dict[str, object], ranks: Farm, folder: Path, tiny_recipe: gm.Recipe
) -> None:
    """Ranks see other samples: the means of a batch norm are those of rank 0 on both, the dropout is each one's own."""
    model = {"name": "own_nets_of_a_test.nets:MyNet", "options": {"trained": True}}
    base = gm.Recipe.model_validate({**tiny_recipe.model_dump(), "model": model})
    recipe = changed(base, epochs=2, batch_size=3, log_every=1, checkpoint_steps=2, keep_checkpoints=9, **engine)
    run = ranks.train(recipe, folder / "run")
    reported = what_a_run_computed(run)
    trained, task = load_trained(run, None, None, best=False)
    alone = evaluate(trained, task, 4, torch.device("cpu"), Ranks(0, 1, 0))
    assert alone.rel_l2 == pytest.approx(run.result()["rel_l2"], rel=1e-6)  # type: ignore[index]
    back_to(4, run)
    ranks.train(recipe, run.path)
    assert what_a_run_computed(run) == reported
