"""Whole training runs, with DeepSpeed, at a size of a second."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from geomano_hpc.config import Recipe, load_recipe, to_yaml
from geomano_hpc.errors import ConfigError, DataError, GeomanoError
from geomano_hpc.training import loop
from geomano_hpc.training.evaluate import load_trained, mean_error
from geomano_hpc.training.loop import train
from geomano_hpc.training.ranks import Ranks
from geomano_hpc.training.run_folder import RunFolder, run_folders
from geomano_hpc.training.tasks import Task


def changed(recipe: Recipe, **training: object) -> Recipe:
    return Recipe.model_validate({**recipe.model_dump(), "training": {**recipe.training.model_dump(), **training}})


def curve(folder: RunFolder) -> list[tuple[float, float]]:
    return [(line["train_loss"], line["test_rel_l2"]) for line in folder.metrics()]


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
    assert start["scan_backend"] == "reference"
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


def test_evaluation_gives_the_number_of_the_result(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    result = train(tiny_recipe, folder)
    model, task = load_trained(folder)
    assert mean_error(model, task, 3, torch.device("cpu"), Ranks(0, 1, 0)) == pytest.approx(result["rel_l2"], rel=1e-6)


def test_rollout_problem_trains(navier_stokes_store: Path, tmp_path: Path) -> None:
    recipe = load_recipe(
        "navier_stokes_smoke",
        [f"data.store={navier_stokes_store}", "model.depth=1", "model.embedding=8", "training.epochs=2"],
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


def stop_after(epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the training die in the middle of the epoch after this one."""
    original = loop.Training._batch_loss

    def dying(self: loop.Training, batch: torch.Tensor) -> torch.Tensor:
        if self.position.epoch == epoch:
            raise KeyboardInterrupt
        return original(self, batch)

    monkeypatch.setattr(loop.Training, "_batch_loss", dying)


def test_resumed_run_is_bit_equal_to_an_undisturbed_one(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, disturbed = RunFolder(tmp_path / "undisturbed"), RunFolder(tmp_path / "disturbed")
    train(tiny_recipe, undisturbed)
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(KeyboardInterrupt):
            train(tiny_recipe, disturbed)
    assert not disturbed.is_finished
    train(tiny_recipe, disturbed)
    assert curve(disturbed) == curve(undisturbed)
    assert disturbed.weights_file.read_bytes() == undisturbed.weights_file.read_bytes()
    assert len(json.loads(disturbed.environment_file.read_text())["starts"]) == 2


def test_kill_minus_9_loses_nothing(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """A real process, killed by itself in the third epoch, after metrics were written that no checkpoint covers."""
    recipe = changed(tiny_recipe, epochs=4, checkpoint_every=2)
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    program = (
        "import os, signal, sys, torch; torch.set_num_threads(1)\n"
        "from geomano_hpc.training import metrics\n"
        "write = metrics.MetricsWriter.write\n"
        "def dying(self, line):\n"
        "    write(self, line)\n"
        "    if line['epoch'] == 3:\n"
        "        self._file.write('{\"epoch\": 4, '); self._file.flush()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "metrics.MetricsWriter.write = dying\n"
        "from geomano_hpc.cli.app import main\n"
        "main(['train', 'recipe.yaml', '--out', 'killed'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    killed, undisturbed = RunFolder(tmp_path / "killed"), RunFolder(tmp_path / "undisturbed")
    assert len(killed.metrics()) == 3
    train(recipe, killed)
    train(recipe, undisturbed)
    assert curve(killed) == curve(undisturbed)
    assert killed.weights_file.read_bytes() == undisturbed.weights_file.read_bytes()


def test_broken_newest_checkpoint_falls_back_to_the_one_before(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(KeyboardInterrupt):
            train(tiny_recipe, folder)
    newest = folder.checkpoints / "epoch_000002"
    (newest / "state.pt").write_bytes((newest / "state.pt").read_bytes()[:100])
    train(tiny_recipe, folder)
    assert "epoch_000002 cannot be read" in caplog.text
    assert "resumed from" in caplog.text
    assert [line["epoch"] for line in folder.metrics()] == [1, 2, 3]


def test_no_readable_checkpoint_is_an_error_and_not_a_fresh_start(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        with pytest.raises(KeyboardInterrupt):
            train(tiny_recipe, folder)
    (folder.checkpoints / "epoch_000001" / "state.pt").unlink()
    with pytest.raises(GeomanoError, match="none of 1 checkpoints can be read"):
        train(tiny_recipe, folder)


def test_old_checkpoints_are_removed(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    train(changed(tiny_recipe, keep_checkpoints=2), folder)
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["epoch_000002", "epoch_000003"]


def test_finished_run_is_not_repeated(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    result = train(tiny_recipe, folder)
    written = folder.weights_file.stat().st_mtime_ns
    assert train(tiny_recipe, folder) == result
    assert folder.weights_file.stat().st_mtime_ns == written


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


def test_data_that_changed_between_two_starts_is_an_error(
    tiny_recipe: Recipe, darcy_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "copy.zarr"
    shutil.copytree(darcy_store, store)
    content = tiny_recipe.model_dump()
    recipe = Recipe.model_validate({**content, "data": {**content["data"], "store": store}})
    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, folder)
    manifest = store / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")
    with pytest.raises(DataError, match="the data changed since"):
        train(recipe, folder)


def test_loss_that_is_not_finite_stops_with_the_samples(
    tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Task.training_loss
    monkeypatch.setattr(Task, "training_loss", lambda *arguments: original(*arguments) * float("nan"))
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(GeomanoError, match=r"the loss is nan in epoch 1, samples \[\d"):
        train(tiny_recipe, folder)
    assert "the loss is nan" in (folder.logs / "train.log").read_text()


def test_two_ranks_follow_the_curve_of_one(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """Ten samples in batches of three: the last batch has one sample, so one of the two ranks has none."""
    recipe = changed(tiny_recipe, batch_size=3)
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "geomano_hpc", "train", "recipe.yaml", "--out", "two",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    one, two = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "two")
    train(recipe, one)
    for expected, found in zip(curve(one), curve(two), strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
    for name, weight in load_file(one.weights_file).items():
        torch.testing.assert_close(load_file(two.weights_file)[name], weight, rtol=1e-3, atol=1e-5)
    assert json.loads(two.environment_file.read_text())["starts"][0]["world_size"] == 2


def test_deepspeed_compiles_nothing(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """Its shared-memory operator would take minutes on first use."""
    (tmp_path / "recipe.yaml").write_text(to_yaml(tiny_recipe))
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    command = [sys.executable, "-m", "geomano_hpc", "train", "recipe.yaml", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "shm_comm" not in done.stdout + done.stderr
    assert not (tmp_path / "extensions").exists()


def test_folder_without_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such study or run folder"):
        run_folders(tmp_path / "none")
    with pytest.raises(ConfigError, match="not a run folder"):
        RunFolder(tmp_path).recipe()
    with pytest.raises(GeomanoError, match="no trained weights yet"):
        load_trained(RunFolder(tmp_path))
