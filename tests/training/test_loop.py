"""Whole training runs, with DeepSpeed, at a size of a second."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from geomano_hpc.config import Recipe, TrainingConfig, load_recipe, to_yaml
from geomano_hpc.errors import ConfigError, GeomanoError
from geomano_hpc.training.engine import start_engine
from geomano_hpc.training.loop import train
from geomano_hpc.training.ranks import Ranks, join
from geomano_hpc.training.run_folder import RunFolder
from geomano_hpc.training.tasks import Task
from tests.training_runs import changed, curve


def test_run_folder_is_complete(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    result = train(tiny_recipe, folder)
    names = {entry.name for entry in folder.path.iterdir() if not entry.name.startswith(".")}
    files = {"config.yaml", "environment.json", "metrics.jsonl", "model.safetensors", "result.json"}
    assert names == {"tensorboard", "checkpoints", "logs", *files}
    assert folder.recipe() == tiny_recipe
    assert json.loads(folder.result_file.read_text()) == result
    assert [line["epoch"] for line in folder.metrics()] == [1, 2, 3]
    (start,) = json.loads(folder.environment_file.read_text())["starts"]
    assert start["scan_backend"] == "cpu"
    assert start["packages"]["torch"] == torch.__version__
    assert "finished: rel-L2" in (folder.logs / "train.log").read_text()
    events = EventAccumulator(str(folder.tensorboard)).Reload()
    assert [event.step for event in events.Scalars("loss/train")] == [1, 2, 3]
    assert events.Scalars("rel_l2/test")[-1].value == pytest.approx(result["rel_l2"])


def test_training_learns(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    train(changed(tiny_recipe, epochs=25, lr=2e-2), folder)
    losses = [loss for loss, _ in curve(folder)]
    assert losses[-1] < 0.5 * losses[0]


def test_rollout_problem_trains(navier_stokes_store: Path, tmp_path: Path) -> None:
    recipe = load_recipe(
        "navier_stokes_smoke",
        [
            f"data.store={navier_stokes_store}",
            "data.generate=null",
            "model.depth=1",
            "model.embedding=8",
            "training.epochs=2",
        ],
    )
    result = train(recipe, RunFolder(tmp_path / "run"))
    assert result["problem"] == "navier_stokes"
    assert 0 < result["rel_l2"] < 10


def test_same_seed_gives_the_same_bits_and_another_seed_does_not(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folders = [RunFolder(tmp_path / name) for name in ("one", "again", "other")]
    for folder, seed in zip(folders, (0, 0, 1), strict=True):
        train(changed(tiny_recipe, seed=seed), folder)
    assert folders[0].weights_file.read_bytes() == folders[1].weights_file.read_bytes()
    assert folders[0].weights_file.read_bytes() != folders[2].weights_file.read_bytes()


def test_folder_of_another_recipe_is_refused(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.write_recipe(tiny_recipe)
    with pytest.raises(ConfigError, match="holds a run with another configuration"):
        train(changed(tiny_recipe, seed=9), folder)


def test_folder_in_use_is_refused(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.held():
        assert folder.is_held
        with pytest.raises(GeomanoError, match="another process is training"):
            train(tiny_recipe, folder)
    assert not folder.is_held


def test_loss_that_is_not_finite_stops_with_the_samples(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Task.training_loss
    monkeypatch.setattr(Task, "training_loss", lambda *arguments: original(*arguments) * float("nan"))
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(GeomanoError, match=r"the loss is nan in epoch 1, samples \[\d"):
        train(tiny_recipe, folder)
    assert "the loss is nan" in (folder.logs / "train.log").read_text()


def test_optimiser_steps_are_those_of_plain_torch() -> None:
    """Clipping at 0.1, AdamW and OneCycleLR per batch: DeepSpeed changes nothing."""
    config = TrainingConfig(lr=1e-2, clip=0.1, weight_decay=1e-2)
    torch.manual_seed(0)
    ours = torch.nn.Linear(3, 2)
    plain = copy.deepcopy(ours)
    alone = Ranks(0, 1, 0)
    join(alone)
    engine = start_engine(ours, config, total_steps=6, ranks=alone)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=6)
    for _ in range(5):
        x = torch.randn(4, 3)
        engine.step(engine.deepspeed(x).square().sum())
        optimizer.zero_grad()
        plain(x).square().sum().backward()
        assert torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1) > 0.1
        optimizer.step()
        scheduler.step()
        assert engine.scheduler.get_last_lr() == scheduler.get_last_lr()
    torch.testing.assert_close(ours.weight, plain.weight, rtol=1e-5, atol=1e-7)


def test_deepspeed_compiles_nothing(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """Its shared-memory operator would take minutes on first use."""
    (tmp_path / "recipe.yaml").write_text(to_yaml(tiny_recipe))
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    command = [sys.executable, "-m", "geomano_hpc", "train", "recipe.yaml", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "shm_comm" not in done.stdout + done.stderr
    assert not (tmp_path / "extensions").exists()
