"""The same numbers for every logger, offline, in one run of theirs however often ours is started."""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geomano_hpc.config import Recipe, load_recipe
from geomano_hpc.errors import ConfigError, GeomanoError
from geomano_hpc.training.callbacks import Callback, Progress
from geomano_hpc.training.loggers import logger as loggers
from geomano_hpc.training.loggers.tensorboard import TensorBoard
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.run_folder import RunFolder
from tests.support.training_runs import back_to, changed, step_losses
from tests.support.waiting import wait_until

STEPS, EPOCHS = 6, 2


@pytest.fixture(autouse=True)
def _no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def recipe(tiny_recipe: Recipe) -> Recipe:
    keys = {"log_every": 1, "checkpoint_steps": 2, "keep_checkpoints": 9, "figures_every": 0}
    return changed(tiny_recipe, engine="torch", epochs=EPOCHS, **keys)


@pytest.mark.slow
def test_mlflow_gets_every_point_once_in_one_run(recipe: Recipe, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    folder = RunFolder(tmp_path / "run")
    recipe = changed(recipe, loggers=["tensorboard", "mlflow"])
    train(recipe, folder)
    back_to(2, folder)  # as if killed after the next steps were shown
    train(recipe, folder)
    client = mlflow.tracking.MlflowClient(folder.mlflow.as_uri())
    (experiment,) = (e for e in client.search_experiments() if e.name == recipe.name)
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["training.optimizer"] == "adamw"
    history = client.get_metric_history(run.info.run_id, "steps/loss")
    assert {point.step: point.value for point in history} == pytest.approx(step_losses(folder))
    assert len(history) == STEPS
    judged = [point.value for point in client.get_metric_history(run.info.run_id, "rel_l2/test")]
    assert judged == [line["test_rel_l2"] for line in folder.metrics()]


@pytest.mark.slow
def test_mlflow_of_the_users_own_is_used(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "own").as_uri())
    folder = RunFolder(tmp_path / "run")
    recipe = changed(recipe, epochs=1, loggers=["mlflow"])
    train(recipe, folder)
    assert not folder.mlflow.exists()
    assert not folder.tensorboard.exists()
    assert len(mlflow.tracking.MlflowClient((tmp_path / "own").as_uri()).search_experiments()) == 2  # and MLflow's own
    back_to(2, folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "another").as_uri())
    with pytest.raises(ConfigError, match=r"does not know the mlflow run .*; set MLFLOW_TRACKING_URI as at the start"):
        train(recipe, folder)


@pytest.mark.slow
def test_wandb_gets_the_same_points_offline_in_one_run(recipe: Recipe, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    folder = RunFolder(tmp_path / "run")
    recipe = changed(recipe, loggers=["tensorboard", "wandb"])
    train(recipe, folder)
    back_to(2, folder)
    train(recipe, folder)
    first, second = sorted(
        (folder.path / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda file: file.stat().st_mtime
    )
    assert first.name == second.name == f"run-{json.loads((folder.path / 'loggers.json').read_text())['wandb']}.wandb"
    shown = list(step_losses(folder).values())
    assert _exit_code(first) == _exit_code(second) == 0
    assert _points(first, "steps/loss") == pytest.approx(shown)
    assert _points(second, "steps/loss") == pytest.approx(shown[2:])
    assert _points(first, "rel_l2/test") == pytest.approx([line["test_rel_l2"] for line in folder.metrics()])


@pytest.mark.slow
def test_wandb_shows_a_run_that_failed_as_failed(recipe: Recipe, tmp_path: Path) -> None:
    pytest.importorskip("wandb")

    class Fails(Callback):
        def on_step(self, progress: Progress) -> None:
            raise ValueError("no")

    with pytest.raises(GeomanoError, match="Fails"):
        train(changed(recipe, loggers=["wandb"]), RunFolder(tmp_path / "run"), [Fails()])
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    assert _exit_code(file) == 1


def _points(file: Path, curve: str) -> list[float]:
    found: list[float] = []
    for record in _records(file):
        items = {".".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        found += [json.loads(items[curve])] if curve in items else []
    return found


def _exit_code(file: Path) -> int:
    """The last record of a run. wandb's own process writes it, maybe after ours went on."""

    def found() -> list[int]:
        return [record.exit.exit_code for record in _records(file) if record.HasField("exit")]

    wait_until(lambda: len(found()) == 1)
    return found()[0]


def _records(file: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    for content in _contents(file.read_bytes()):
        record: Any = vars(wandb_internal_pb2)["Record"]()
        record.ParseFromString(content)
        yield record


def _contents(content: bytes) -> Iterator[bytes]:
    """The log format of LevelDB: blocks of 32 KiB with parts of records, after 7 bytes of wandb's own."""
    at, gathered = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        if at + 7 + size > len(content):  # still being written
            return
        gathered += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield gathered
            gathered = b""


def test_missing_package_is_named_before_the_folder_is_made(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"wandb needs the package wandb: pip install 'geomano_hpc\[wandb\]'"):
        train(changed(recipe, loggers=["wandb"]), RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_logger_that_is_not_known_or_stands_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training.loggers: 'wandbb' is not known; did you mean 'wandb'\?"):
        load_recipe("darcy_smoke", ["training.loggers=[wandbb]"])
    with pytest.raises(ConfigError, match="stands twice"):
        load_recipe("darcy_smoke", ["training.loggers=[wandb, wandb]"])


def test_logger_that_fails_later_is_left_out_with_a_warning_and_the_run_goes_on(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space\nleft")

    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(TensorBoard, "scalars", full)
        train(changed(recipe, epochs=1), folder)
    assert caplog.text.count("tensorboard failed (OSError: no space left) and gets no more of this run") == 1
    assert len(folder.metrics()) == 1
    monkeypatch.setattr(TensorBoard, "__init__", full)
    with pytest.raises(GeomanoError, match=r"training.loggers: tensorboard cannot start: OSError: no space left"):
        train(changed(recipe, epochs=1), RunFolder(tmp_path / "other"))


def test_hyperparameters_have_the_keys_that_decide_a_training(tiny_recipe: Recipe) -> None:
    found = loggers.hyperparameters(changed(tiny_recipe, optimizer="sgd", optimizer_options={"momentum": 0.9}))
    assert found["training.optimizer"] == "sgd"
    assert found["training.optimizer_options"] == "{'momentum': 0.9}"
    assert found["loss.name"] == "relative_l2"
    assert {"training.scheduler", "training.warmup", "training.lr", "model.depth"} <= found.keys()


def test_starts_within_one_second_are_read_in_their_order(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """Behind the second TensorBoard puts a number, and sorts the tenth file of a process before its ninth."""
    folder = RunFolder(tmp_path / "run")
    for step in range(1, 4):
        board = TensorBoard(folder, tiny_recipe, finished_steps=step - 1)
        board.scalars(step, {"steps/loss": float(step)})
        board.close()
    seconds = [int(file.name.split(".")[3]) for file in folder.tensorboard.iterdir()]
    assert len(set(seconds)) == 3
    assert step_losses(folder) == {1: 1.0, 2: 2.0, 3: 3.0}
