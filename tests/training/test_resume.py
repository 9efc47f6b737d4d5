"""Stopping anywhere and going on: nothing is lost, nothing changes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from geomano_hpc.config import Recipe, to_yaml
from geomano_hpc.data import Batch
from geomano_hpc.errors import DataError, GeomanoError
from geomano_hpc.training import loop
from geomano_hpc.training.loop import train
from geomano_hpc.training.run_folder import RunFolder
from tests.training_runs import changed, curve


def stop_after(epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the training die in the middle of the epoch after this one."""
    original = loop.Training._batch_loss

    def dying(self: loop.Training, batch: torch.Tensor, fields: Batch) -> torch.Tensor:
        if self.position.epoch == epoch:
            raise KeyboardInterrupt
        return original(self, batch, fields)

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


@pytest.mark.parametrize("damaged", ["state.pt", "model.safetensors", "sha256.json"])
def test_flipped_bit_in_the_newest_checkpoint_falls_back_to_the_one_before(
    damaged: str, tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(KeyboardInterrupt):
            train(tiny_recipe, folder)
    newest = folder.checkpoints / "epoch_000002"
    content = bytearray((newest / damaged).read_bytes())
    content[len(content) // 2] ^= 1
    (newest / damaged).write_bytes(content)
    (folder.checkpoints / ".epoch_000003.partial-elsewhere-1").mkdir()  # left by a killed process of another machine
    train(tiny_recipe, folder)
    assert not list(folder.checkpoints.glob(".*"))
    assert "epoch_000002 is damaged" in caplog.text
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
    with pytest.raises(GeomanoError, match="all 1 checkpoints are damaged"):
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
    content = json.loads(manifest.read_text())
    content["sha256"]["input/c/0/0/0/0"] = "0" * 64
    manifest.write_text(json.dumps(content))
    with pytest.raises(DataError, match="the data changed since"):
        train(recipe, folder)
