"""Whole training runs at a size of a second."""

import copy
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from geomano_hpc.config import Recipe, TrainingConfig, load_recipe, to_yaml
from geomano_hpc.data import Batch, GlobalBatch
from geomano_hpc.errors import ConfigError, GeomanoError
from geomano_hpc.training import setup, steps
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.distributed.world import join
from geomano_hpc.training.engines.engine import start_engine
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.metrics import EpochSums
from geomano_hpc.training.records.run_folder import RunFolder
from tests.support.training_runs import changed, curve


def test_run_folder_is_complete(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    result = train(tiny_recipe, folder)
    names = {entry.name for entry in folder.path.iterdir() if not entry.name.startswith(".")}
    files = {"config.yaml", "environment.json", "metrics.jsonl", "model.safetensors", "result.json"}
    assert names == {"tensorboard", "checkpoints", "logs", "predictions.npz", *files}
    assert folder.recipe() == tiny_recipe
    assert json.loads(folder.result_file.read_text()) == result
    assert [line["epoch"] for line in folder.metrics()] == [1, 2, 3]
    (start,) = json.loads(folder.environment_file.read_text())["starts"]
    assert start["scan_backend"] == "cpu"
    assert start["packages"]["torch"] == torch.__version__
    assert "finished: rel-L2" in folder.log_file.read_text()
    events = EventAccumulator(str(folder.tensorboard)).Reload()
    assert [event.step for event in events.Scalars("loss/train")] == [3, 6, 9]
    assert events.Scalars("rel_l2/test")[-1].value == pytest.approx(result["rel_l2"])


def test_loss_of_a_line_is_the_sum_of_its_parts(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    train(changed(tiny_recipe, epochs=1), folder)
    (line,) = folder.metrics()
    assert line["train_loss"] == pytest.approx(line["train_rel_l2"] + 0.1 * line["train_gradient_loss"])
    assert 0 < line["data_wait_share"] < 1
    assert 0.05 < line["memory_gib"] < 100
    assert line["gradient_norm"] > 0


def test_epoch_that_left_out_every_batch_has_no_loss() -> None:
    assert math.isnan(EpochSums(seconds=1.0).line()["train_loss"])  # 0 would be the best of all


def test_training_learns(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    train(changed(tiny_recipe, epochs=25, lr=2e-2, engine="torch"), folder)
    losses = [loss for loss, _ in curve(folder)]
    assert losses[-1] < 0.5 * losses[0]


def test_rollout_problem_trains_and_is_judged_frame_by_frame(navier_stokes_store: Path, tmp_path: Path) -> None:
    recipe = load_recipe(
        "navier_stokes_smoke",
        [
            f"data.store={navier_stokes_store}",
            "data.generate=null",
            "model.depth=1",
            "model.embedding=8",
            "training.epochs=2",
            "training.figures_every=0",
        ],
    )
    result = train(recipe, RunFolder(tmp_path / "run"))
    assert result["problem"] == "navier_stokes"
    assert 0 < result["rel_l2"] < 10
    assert len(result["rel_l2_by_frame"]) == 10
    assert min(result["rel_l2_by_frame"]) < result["rel_l2"] < max(result["rel_l2_by_frame"])


def test_same_seed_gives_the_same_bits_and_another_seed_does_not(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folders = [RunFolder(tmp_path / name) for name in ("one", "again", "other")]
    for folder, seed in zip(folders, (0, 0, 1), strict=True):
        train(changed(tiny_recipe, seed=seed), folder)
    assert folders[0].weights_file.read_bytes() == folders[1].weights_file.read_bytes()
    assert folders[0].weights_file.read_bytes() != folders[2].weights_file.read_bytes()


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_lower_precision_gives_the_same_losses_with_both_engines(
    precision: str, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    content = tiny_recipe.model_dump()
    content["compute"]["precision"] = precision
    content["model"]["scan_backend"] = "torch"  # float16 has no kernel for CPUs
    folders = {engine: RunFolder(tmp_path / engine) for engine in ("deepspeed", "torch")}
    for engine, folder in folders.items():
        train(changed(Recipe.model_validate(content), engine=engine), folder)
    assert curve(folders["torch"]) == curve(folders["deepspeed"])
    assert curve(folders["torch"])[-1][0] < curve(folders["torch"])[0][0]
    weights = (folders["torch"].checkpoints / "step_000000009-epoch_000003" / "model.safetensors").read_bytes()
    assert b'"F32"' in weights
    assert b'"BF16"' not in weights


def test_gradient_that_no_scale_of_float16_makes_finite_stops_the_run(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = changed(tiny_recipe, epochs=9, engine="torch").model_dump()
    content["compute"]["precision"] = "float16"
    content["model"]["scan_backend"] = "torch"
    build = setup.build_model

    def broken(*arguments: Any) -> torch.nn.Module:
        model = build(*arguments)
        next(model.parameters()).register_hook(lambda gradient: gradient * math.nan)
        return model

    monkeypatch.setattr(setup, "build_model", broken)
    with pytest.raises(GeomanoError, match=r"the norm of its gradient nan in epoch 7, step 21"):
        train(Recipe.model_validate(content), RunFolder(tmp_path / "run"))


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


def poison(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of this step (from 1) is not a number."""
    original = steps.Steps.take

    def poisoned(self: steps.Steps, batch: GlobalBatch, loaded: Iterator[Batch]) -> steps.Taken:
        if (batch.epoch - 1) * self.per_epoch + batch.step + 1 == step:
            fields = next(loaded)
            fields.input_BHWC[0, 2, 2] = float("nan")
            loaded = iter([fields])
        return original(self, batch, loaded)

    monkeypatch.setattr(steps.Steps, "take", poisoned)


@pytest.mark.parametrize("engine", [{"engine": "torch"}, {}, {"zero": 2}])
def test_loss_that_is_not_finite_stops_with_the_samples_and_the_state_before_it(
    engine: dict[str, object], tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, folder = changed(tiny_recipe, **engine), RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        poison(5, patch)
        with pytest.raises(GeomanoError, match=r"the loss is nan .* in epoch 2, step 5, samples \[\d"):
            train(recipe, folder)
    assert "the loss is nan" in folder.log_file.read_text()
    assert (folder.checkpoints / "step_000000004-epoch_000001").is_dir()
    train(recipe, folder)  # the sample is good again: the run is the one that was never disturbed
    train(recipe, RunFolder(tmp_path / "undisturbed"))
    assert folder.weights_file.read_bytes() == RunFolder(tmp_path / "undisturbed").weights_file.read_bytes()


@pytest.mark.parametrize("engine", [{"engine": "torch"}, {"zero": 1}])
def test_batches_that_are_not_finite_may_be_left_out(
    engine: dict[str, object],
    tiny_recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = RunFolder(tmp_path / "run")
    poison(5, monkeypatch)
    result = train(changed(tiny_recipe, skip_nonfinite=1, **engine), folder)
    assert result["skipped_batches"] == 1
    assert "left out, as training.skip_nonfinite says; 0 more may be" in caplog.text
    assert all(torch.tensor(curve(folder)).isfinite().flatten())


def test_step_that_diverges_is_reported_with_its_samples(tiny_recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(GeomanoError, match=r"the loss is \S+ and the norm .* samples \[\d"):
        train(changed(tiny_recipe, lr=1e30, engine="torch"), RunFolder(tmp_path / "run"))


@pytest.mark.parametrize("engine", ["deepspeed", "torch"])
def test_optimiser_steps_are_those_of_plain_torch(engine: str) -> None:
    """Clipping at 0.1, AdamW and OneCycleLR per batch: no engine changes anything."""
    config = TrainingConfig(lr=1e-2, clip=0.1, weight_decay=1e-2, engine=engine)  # type: ignore[arg-type]
    torch.manual_seed(0)
    ours = torch.nn.Linear(3, 2)
    plain = copy.deepcopy(ours)
    alone = Ranks(0, 1, 0)
    join(alone)
    started = start_engine(ours, config, total_steps=6, ranks=alone)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=6)
    for _ in range(5):
        x = torch.randn(4, 3)
        started.backward(started.network(x).square().sum(), last=True)
        norm = started.step()
        optimizer.zero_grad()
        plain(x).square().sum().backward()
        assert float(torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)) == pytest.approx(norm)
        assert norm > 0.1
        optimizer.step()
        scheduler.step()
        assert started.schedule.lr == scheduler.get_last_lr()[0]
    torch.testing.assert_close(ours.weight, plain.weight, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_deepspeed_compiles_nothing_and_imports_no_mlflow(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """Its shared-memory operator would take minutes on first use, MLflow a second at every start."""
    (tmp_path / "recipe.yaml").write_text(to_yaml(changed(tiny_recipe, zero=1)))
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    command = [sys.executable, "-v", "-m", "geomano_hpc", "train", "recipe.yaml", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "import 'deepspeed'" in done.stderr
    for unwanted in ("shm_comm", "laio", "Traceback", "import 'mlflow"):
        assert unwanted not in done.stdout + done.stderr
    assert not (tmp_path / "extensions").exists()


@pytest.mark.slow
def test_engine_torch_needs_no_deepspeed(tiny_recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(to_yaml(changed(tiny_recipe, engine="torch", epochs=1)))
    program = (
        "import sys; sys.modules['deepspeed'] = None  # as if it were not installed\n"
        "from geomano_hpc.cli.app import main\n"
        "for options in (['--out', 'run'], ['--out', 'other', '--set', 'training.engine=deepspeed']):\n"
        "    try:\n"
        "        main(['train', 'recipe.yaml', *options])\n"
        "    except SystemExit as ended:\n"
        "        print('ended with', ended.code or 0)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.findall(r"ended with (\d)", done.stdout) == ["0", "1"], done.stderr
    assert "error: DeepSpeed cannot be imported" in done.stderr
    assert "set training.engine=torch" in done.stderr


@pytest.mark.parametrize(
    ("keys", "ours"),
    [
        ({"zero_optimization": {"stage": 2}}, "training.deepspeed.zero_optimization.stage: is set by training.zero"),
        ({"gradient_accumulation_steps": 2}, "is set by training.accumulate; set that instead"),
        ({"bf16": {"enabled": True}}, "is set by compute.precision"),
    ],
)
def test_keys_of_deepspeed_that_a_key_of_the_recipe_stands_for_are_refused(
    keys: dict[str, object], ours: str, tiny_recipe: Recipe
) -> None:
    with pytest.raises(ValueError, match=re.escape(ours)):
        changed(tiny_recipe, deepspeed=keys)


def test_other_keys_of_deepspeed_are_numbers_from_the_command_line_too() -> None:
    said = ["training.deepspeed.zero_optimization.reduce_bucket_size=5e7"]
    assert load_recipe("darcy_smoke", said).training.deepspeed == {"zero_optimization": {"reduce_bucket_size": 5e7}}


def test_zero_belongs_to_deepspeed(tiny_recipe: Recipe) -> None:
    with pytest.raises(ValueError, match="leave them out with engine torch"):
        changed(tiny_recipe, engine="torch", zero=1)
    with pytest.raises(ConfigError, match=r"float16 goes with training\.zero 0 only"):
        load_recipe("darcy_smoke", ["compute.precision=float16", "training.zero=1"])
