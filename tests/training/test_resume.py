"""Stopping anywhere and going on: nothing is lost, nothing changes."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from geomano_hpc.config import Recipe, to_yaml
from geomano_hpc.data import Batch, GlobalBatch
from geomano_hpc.errors import DataError, GeomanoError, PreemptedError
from geomano_hpc.training import loop, steps
from geomano_hpc.training.evaluate import Evaluation, load_trained
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.signals import stop_requests
from tests.support.training_runs import changed, mean_error, what_a_run_computed

STEPS = 9  # of the tiny recipe: three epochs of three


@pytest.fixture
def recipe(tiny_recipe: Recipe) -> Recipe:
    """Without DeepSpeed: the same checkpoints in less time."""
    return changed(tiny_recipe, engine="torch", log_every=1)


def stop_at(step: int, how: BaseException | signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the training die, or be asked to stop, when it is about to take this step (from 1)."""
    original = steps.Steps.take

    def dying(self: steps.Steps, batch: GlobalBatch, loaded: Iterator[Batch]) -> steps.Taken:
        if (batch.epoch - 1) * self.per_epoch + batch.step + 1 == step:
            if not isinstance(how, signal.Signals):
                raise how
            os.kill(os.getpid(), how)
        return original(self, batch, loaded)

    monkeypatch.setattr(steps.Steps, "take", dying)


def die_at(step: int, recipe: Recipe, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_at(step, KeyboardInterrupt(), patch)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, folder)
    assert not folder.is_finished


@pytest.fixture
def undisturbed(recipe: Recipe, tmp_path: Path) -> object:
    train(recipe, RunFolder(tmp_path / "undisturbed"))
    return what_a_run_computed(RunFolder(tmp_path / "undisturbed"))


def test_run_stopped_by_signals_is_bit_equal_to_an_undisturbed_one(
    recipe: Recipe, undisturbed: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first step, in mid-epoch, and in the last step of an epoch, before its evaluation."""
    folder = RunFolder(tmp_path / "stopped")
    stops = ((1, signal.SIGTERM, "SIGTERM", 75), (5, signal.SIGINT, "Ctrl-C", 130), (6, signal.SIGUSR2, "SIGUSR2", 75))
    for step, number, name, exit_code in stops:
        before = signal.getsignal(number)
        with monkeypatch.context() as patch:
            stop_at(step, number, patch)
            with pytest.raises(PreemptedError, match=f"stopped by {name} after step {step} of {STEPS}") as stopped:
                train(recipe, folder)
        assert stopped.value.exit_code == exit_code
        assert signal.getsignal(number) == before
        newest = sorted(folder.checkpoints.iterdir())[-1].name
        assert newest == f"step_{step:09d}-epoch_{(step - 1) // 3:06d}"
    train(recipe, folder)
    assert what_a_run_computed(folder) == undisturbed
    assert len(json.loads(folder.environment_file.read_text())["starts"]) == 4


def test_second_ctrl_c_ends_at_once_unless_it_is_the_first_one_handed_on_by_a_launcher(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with stop_requests() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.by_user
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.by_user  # what came first counts
        assert capfd.readouterr().err.count("Ctrl-C again ends at once") == 1
        later = time.monotonic() + 2
        monkeypatch.setattr("time.monotonic", lambda: later)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_process_in_the_background_goes_on_ignoring_ctrl_c() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_requests() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.received is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_signal_during_an_evaluation_saves_the_epoch_and_stops(
    recipe: Recipe, undisturbed: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "stopped")
    original = loop.Training._pause

    def asked_to_stop(self: loop.Training) -> None:
        if self.position.epoch == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Training, "_pause", asked_to_stop)
        with pytest.raises(PreemptedError, match="after step 6 of 9"):
            train(recipe, folder)
    assert len(folder.metrics()) == 1
    train(recipe, folder)
    assert what_a_run_computed(folder) == undisturbed


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.slow
def test_run_with_deepspeed_dies_in_mid_epoch_and_loses_nothing(
    zero: int, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = changed(recipe, engine="deepspeed", zero=zero, epochs=2, checkpoint_steps=2)
    undisturbed, disturbed = RunFolder(tmp_path / "undisturbed"), RunFolder(tmp_path / "disturbed")
    train(recipe, undisturbed)
    die_at(6, recipe, disturbed, monkeypatch)
    train(recipe, disturbed)
    assert "resumed from" in disturbed.log_file.read_text()
    assert what_a_run_computed(disturbed) == what_a_run_computed(undisturbed)


@pytest.mark.parametrize("damaged", ["state.json", "model.safetensors", "optimizer.safetensors", "sha256.json"])
def test_truncated_newest_checkpoint_falls_back_to_the_one_before_and_says_so(
    damaged: str,
    recipe: Recipe,
    undisturbed: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = RunFolder(tmp_path / "run")
    die_at(8, recipe, folder, monkeypatch)
    newest = folder.checkpoints / "step_000000006-epoch_000002"
    content = (newest / damaged).read_bytes()
    (newest / damaged).write_bytes(content[: len(content) // 2])
    (folder.checkpoints / ".step_000000009.partial-elsewhere-1").mkdir()  # left by a killed process of another machine
    train(recipe, folder)
    assert not list(folder.checkpoints.glob(".*"))
    assert re.search(rf"{newest.name} is damaged .*: trying the one before", caplog.text)
    assert (newest.parent / f"damaged-{newest.name}").is_dir()  # kept, and not counted among the newest
    assert "resumed from" in caplog.text
    assert what_a_run_computed(folder) == undisturbed


def test_flipped_bit_is_noticed(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = RunFolder(tmp_path / "run")
    die_at(8, recipe, folder, monkeypatch)
    file = sorted(folder.checkpoints.iterdir())[-1] / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    train(recipe, folder)
    assert "is damaged (optimizer.safetensors)" in caplog.text


def test_no_readable_checkpoint_is_an_error_and_not_a_fresh_start(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "run")
    die_at(4, recipe, folder, monkeypatch)
    next(folder.checkpoints.glob("step_*/state.json")).unlink()
    with pytest.raises(GeomanoError, match="all 1 checkpoints are damaged"):
        train(recipe, folder)
    shutil.rmtree(folder.checkpoints)
    (folder.checkpoints / "epoch_000001").mkdir(parents=True)
    with pytest.raises(GeomanoError, match="checkpoints of an older version"):
        train(recipe, folder)


def test_checkpoints_hold_no_pickled_code_and_only_the_newest_stay(recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    train(changed(recipe, keep_checkpoints=2, checkpoint_steps=2), folder)
    names = sorted(path.name for path in folder.checkpoints.iterdir())
    assert names == ["step_000000008-epoch_000002", "step_000000009-epoch_000003"]
    files = {path.name for path in (folder.checkpoints / names[0]).iterdir()}
    assert files == {"model.safetensors", "optimizer.safetensors", "state.json", "sha256.json"}


def test_checkpoints_come_by_the_clock_too(recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    train(changed(recipe, checkpoint_every=3, checkpoint_minutes=1e-9, keep_checkpoints=99), folder)
    names = sorted(path.name for path in folder.checkpoints.iterdir())
    assert sorted({int(name[5:14]) for name in names}) == list(range(1, STEPS + 1))
    assert "step_000000003-epoch_000000" in names  # during the evaluation of the epoch


def test_without_a_validation_split_nothing_is_chosen(recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    result = train(recipe, folder)
    assert (result["weights"], result["rel_l2"]) == ("last", folder.metrics()[-1]["test_rel_l2"])
    assert "validation_rel_l2" not in result
    assert not folder.best_weights_file.exists()
    assert folder.weights() == folder.weights_file
    with pytest.raises(GeomanoError, match="has no best weights: they are chosen on a validation split"):
        folder.weights(best=True)


def test_best_weights_are_chosen_on_validation_and_tested_once(
    recipe: Recipe, validated_store: Path, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"store": validated_store})})
    result = train(changed(recipe, lr=0.05, epochs=4, keep_checkpoints=9), folder)
    errors = [line["validation_rel_l2"] for line in folder.metrics()]
    assert all(line["test_rel_l2"] is None for line in folder.metrics())
    assert result["validation_rel_l2"] == min(errors)
    assert (result["weights"], result["best_epoch"]) == ("best", errors.index(min(errors)) + 1)
    assert folder.weights() == folder.best_weights_file
    assert result["rel_l2"] == pytest.approx(mean_error(*load_trained(folder), 4), rel=1e-6)
    best = errors.index(min(errors)) + 1
    steps_an_epoch = 2  # 8 samples in batches of 4
    newest = f"step_{steps_an_epoch * best:09d}-epoch_{best:06d}"
    expected = load_file(folder.checkpoints / newest / "model.safetensors")
    found = load_file(folder.best_weights_file)
    assert all(found[name].equal(weight) for name, weight in expected.items())


def test_best_weights_of_an_epoch_that_was_lost_are_not_those_of_the_run(
    recipe: Recipe, validated_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after an epoch that was the best so far, before the checkpoint that knows of it."""
    folder = RunFolder(tmp_path / "run")
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"store": validated_store})})
    recipe = changed(recipe, epochs=3)
    stop_at(5, KeyboardInterrupt(), monkeypatch)  # the first step of the third epoch
    with pytest.raises(KeyboardInterrupt):
        train(recipe, folder)
    monkeypatch.undo()
    kept = folder.checkpoints / "step_000000004-epoch_000002" / "best.safetensors"
    expected = kept.read_bytes()
    folder.best_weights_file.unlink()
    folder.best_weights_file.write_bytes(b"of an epoch that was lost")
    original, judged = loop.Training._evaluate, []

    def no_better(training: loop.Training) -> Evaluation:
        judged.append(folder.best_weights_file.read_bytes())
        return replace(original(training), rel_l2=math.inf)

    monkeypatch.setattr(loop.Training, "_evaluate", no_better)
    assert train(recipe, folder)["best_epoch"] == 2
    assert judged == [expected]
    assert folder.best_weights_file.read_bytes() == expected


def test_error_that_is_not_a_number_is_never_the_best(
    recipe: Recipe, validated_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = loop.Training._evaluate

    def first_one_fails(self: loop.Training) -> Evaluation:
        judged = original(self)
        return replace(judged, rel_l2=math.nan) if self.position.epoch == 0 else judged

    monkeypatch.setattr(loop.Training, "_evaluate", first_one_fails)
    folder = RunFolder(tmp_path / "run")
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"store": validated_store})})
    found = train(recipe, folder)["validation_rel_l2"]
    assert found == min(line["validation_rel_l2"] for line in folder.metrics()[1:])


KILLED_AT_A_WRITE = """
import json, os, signal, sys
import torch
torch.set_num_threads(1)
from geomano_hpc.config import load_recipe
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.run_folder import RunFolder
from pathlib import Path
import geomano_hpc.training.records.pictures, torch._dynamo, torch.utils.tensorboard

recipe, first, every = load_recipe("recipe.yaml", []), int(sys.argv[1]), int(sys.argv[2])
EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}

def in_a_child(folder, kill_at):
    # A fork of a process that has imported everything and computed nothing yet.
    child = os.fork()
    if child == 0:
        writes = 0
        def hook(event, arguments):
            nonlocal writes
            wrote = event in EVENTS or (event == "open" and isinstance(arguments[2], int) and arguments[2] & 3)
            if wrote and folder in str(arguments[0]):
                writes += 1
                if writes == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        try:
            train(recipe, RunFolder(Path(folder)))
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        Path(folder + ".writes").write_text(str(writes))
        os._exit(0)
    return os.waitpid(child, 0)[1]

assert in_a_child("undisturbed", 0) == 0
writes = int(Path("undisturbed.writes").read_text())
killed = []
for kill_at in range(first, writes, every):  # the last one clears up after the result
    folder = f"killed_{kill_at:03d}"
    assert os.WTERMSIG(in_a_child(folder, kill_at)) == signal.SIGKILL, folder
    assert not Path(folder, "result.json").exists()
    assert in_a_child(folder, 0) == 0, folder
    killed.append(folder)
print(json.dumps({"writes": writes, "killed": killed}))
"""


@pytest.mark.slow(20)
def test_kill_minus_9_between_any_two_writes_loses_nothing(recipe: Recipe, tmp_path: Path) -> None:
    """Real processes, killed before the n-th file is opened for writing, renamed or removed, for n over a whole run.

    GEOMANO_EVERY_WRITE=1 tries every n, which takes minutes; every eleventh of some hundred meets each kind of write.
    """
    recipe = changed(recipe, epochs=2, checkpoint_steps=2, keep_checkpoints=1, figures_every=99)
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    every = 1 if os.environ.get("GEOMANO_EVERY_WRITE") else 11
    command = [sys.executable, "-c", KILLED_AT_A_WRITE, "3", str(every)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["writes"] > 50
    expected = what_a_run_computed(RunFolder(tmp_path / "undisturbed"))
    for name in told["killed"]:
        assert what_a_run_computed(RunFolder(tmp_path / name)) == expected, name


def test_finished_run_is_not_repeated(recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    result = train(recipe, folder)
    written = folder.weights_file.stat().st_mtime_ns
    assert train(recipe, folder) == result
    assert folder.weights_file.stat().st_mtime_ns == written


def test_data_that_changed_between_two_starts_is_an_error(
    recipe: Recipe, darcy_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "copy.zarr"
    shutil.copytree(darcy_store, store)
    content = recipe.model_dump()
    recipe = Recipe.model_validate({**content, "data": {**content["data"], "store": store}})
    folder = RunFolder(tmp_path / "run")
    die_at(4, recipe, folder, monkeypatch)
    manifest = store / "manifest.json"
    content = json.loads(manifest.read_text())
    content["sha256"]["input/c/0/0/0/0"] = "0" * 64
    manifest.write_text(json.dumps(content))
    with pytest.raises(DataError, match="the data changed since"):
        train(recipe, folder)
