"""What is done with runs after their launch: cancel, retry, logs, and a run that dies without a word."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from geomano_hpc.config import Recipe, to_yaml
from geomano_hpc.errors import ConfigError
from geomano_hpc.launch import Study, plan
from geomano_hpc.launch.cancel import cancel
from geomano_hpc.launch.logs import follow, last_lines, size_of
from geomano_hpc.launch.manifest import keep_in_manifest, read_manifest, runs_of_study
from geomano_hpc.launch.retry import retry, runs_to_retry
from geomano_hpc.launch.run import Outcome, keep_plan, run_here
from geomano_hpc.launch.status import run_status, study_status
from geomano_hpc.training.records.run_folder import RunFolder
from tests.support.training_runs import starts
from tests.support.waiting import wait_until

# Longer than any test, and with no checkpoint but that of a stop.
LONG = {"training.epochs": 5000, "training.checkpoint_every": 5000, "training.engine": "torch"}


@pytest.fixture
def recipe_file(tiny_recipe: Recipe, tmp_path: Path) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(to_yaml(tiny_recipe))
    return file


def training_process(run: RunFolder) -> int:
    """The child of submitit's controller, whose number is the job's."""
    controller = run.job()["job_id"]
    return int(Path(f"/proc/{controller}/task/{controller}/children").read_text().split()[0])


@pytest.mark.slow
def test_runs_are_cancelled_where_they_are_and_one_that_is_killed_has_failed(recipe_file: Path, tmp_path: Path) -> None:
    study = Study(name="s", recipe=str(recipe_file), set=LONG, seeds=[0, 1, 2])
    runs, folder = plan(study), tmp_path / "runs" / "s"
    killed, trained, queued = (RunFolder(folder / run.name) for run in runs)
    outcomes: list[Outcome] = []
    launch = threading.Thread(target=lambda: outcomes.append(run_here(study, runs, folder, at_once=2)), daemon=True)
    launch.start()
    try:
        wait_until(lambda: all(run.metrics_file.is_file() and run_status(run).epoch for run in (killed, trained)))
        assert [status.state for status in study_status(folder)] == ["running", "running", "queued"]
        assert run_status(trained).seconds_left is not None

        done = cancel(folder, [queued.path.name])
        assert done.stopped == [queued.path.name]
        os.kill(training_process(killed), signal.SIGKILL)
        wait_until(lambda: run_status(killed).state == "failed")
        assert run_status(trained).state == "running"  # one that fails does not stop the others
        assert cancel(folder, [trained.path.name, killed.path.name]).idle == [killed.path.name]
    finally:
        cancel(folder, [run.name for run in runs])
        launch.join(timeout=240)
    assert not launch.is_alive()

    (outcome,) = outcomes
    assert list(outcome.failed) == [killed.path.name]
    assert sorted(outcome.left) == sorted([trained.path.name, queued.path.name])
    assert [status.state for status in study_status(folder)] == ["failed", "cancelled", "cancelled"]
    assert "the process ended without a result" in run_status(killed).note
    assert not list(killed.checkpoints.glob("step_*"))
    assert len(list(trained.checkpoints.glob("step_*"))) == 1  # it saved its state before it ended
    assert not queued.environment_file.exists()  # it was never started
    assert [run.name for run in runs_to_retry(folder, [])] == [run.name for run in runs]


@pytest.mark.slow
def test_launch_that_a_script_put_into_the_background_can_be_cancelled(recipe_file: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "geomano_hpc", "launch", str(recipe_file), "--seeds", "1", "--name", "s"]
    ignore = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # noqa: E731 (as sh does for `&`)
    launch = subprocess.Popen(
        [*command, "--set", "training.epochs=5000"], cwd=tmp_path, preexec_fn=ignore, stderr=subprocess.DEVNULL
    )
    folder = tmp_path / "runs" / "s"
    wait_until(lambda: any(file.stat().st_size for file in folder.glob("*/metrics.jsonl")))
    (run,) = (file.parent for file in folder.glob("*/metrics.jsonl"))
    assert cancel(folder, [run.name]).stopped == [run.name]
    launch.wait(timeout=240)
    assert run_status(RunFolder(run)).state == "cancelled"


@pytest.mark.slow
def test_ctrl_c_stops_a_launch_with_its_runs_which_save_and_the_same_command_goes_on(
    recipe_file: Path, tmp_path: Path
) -> None:
    changes = [word for key, value in LONG.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "geomano_hpc", "launch", str(recipe_file), "--seeds", "1", "--name", "s", *changes]
    launch = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE, text=True)
    folder = tmp_path / "runs" / "s"
    wait_until(lambda: any(file.stat().st_size for file in folder.glob("*/metrics.jsonl")))
    (run,) = (RunFolder(file.parent) for file in folder.glob("*/metrics.jsonl"))
    os.killpg(launch.pid, signal.SIGINT)  # a terminal sends it to every process
    _, said = launch.communicate(timeout=240)
    assert launch.returncode == 130, said
    assert said.splitlines()[-1] == (
        "error: runs/s: stopped by Ctrl-C after 0 of 1 runs; what the others have done is saved, and the same command "
        "goes on with them"
    )
    assert "Traceback" not in said
    assert len(list(run.checkpoints.glob("step_*"))) == 1
    assert run_status(run).state == "stopped"


@pytest.mark.slow
def test_retry_starts_what_failed_as_it_was_launched_and_leaves_the_rest(recipe_file: Path, tmp_path: Path) -> None:
    study = Study(name="s", recipe=str(recipe_file), set={"training.epochs": 1}, seeds=[0, 1, 2])
    runs, folder = plan(study), tmp_path / "runs" / "s"
    keep_plan(study, runs, folder, {"cluster": "local", "options": {"at_once": 1}}).claim.release()
    failed, finished, never_started = (RunFolder(folder / run.name) for run in runs)
    failed.failure_file.write_text('{"error": "the disk was full"}')
    finished.write_result({"rel_l2": 0.1})
    with pytest.raises(ConfigError, match="is done: nothing to retry"):
        runs_to_retry(folder, [finished.path.name])
    chosen = runs_to_retry(folder, [])
    assert [run.name for run in chosen] == [failed.path.name]
    where, outcome = retry(folder, chosen, at_once=None)
    assert (where, outcome.started, outcome.failed) == ("local", [failed.path.name], {})
    assert [status.state for status in study_status(folder)] == ["done", "done", "pending"]
    assert len(starts(failed)) == 1
    assert not never_started.environment_file.exists()
    assert json.loads(finished.result_file.read_text()) == {"rel_l2": 0.1}
    assert [launch["options"] for launch in read_manifest(folder).launches] == [{"at_once": 1}, {"at_once": 1}]


def test_run_of_geomano_train_cannot_be_cancelled_from_elsewhere(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "s" / "run")
    folder.write_recipe(tiny_recipe)
    with folder.held():
        done = cancel(tmp_path / "s", ["run"])
    assert "stop it there" in done.out_of_reach["run"]
    assert not folder.cancelled_file.exists()


def test_manifest_keeps_the_order_of_the_study_and_the_runs_of_earlier_launches(
    recipe_file: Path, tmp_path: Path
) -> None:
    first = Study(name="s", recipe=str(recipe_file), axes={"model.depth": [8, 16]}, seeds=[0])
    second = Study(name="s", recipe=str(recipe_file), axes={"model.depth": [2, 16]}, seeds=[0])
    for study in (first, second):
        keep_in_manifest(study, plan(study), tmp_path, {"cluster": "local"})
        for run in plan(study):
            RunFolder(tmp_path / run.name).write_recipe(run.recipe)
    depths = [run.recipe().model.model_dump()["depth"] for run in runs_of_study(tmp_path)]
    assert depths == [2, 16, 8]
    keep_in_manifest(second, plan(second)[1:], tmp_path, {"cluster": "local"})  # a part of it, as retry does
    assert [point["model.depth"] for point in read_manifest(tmp_path).runs.values()] == [2, 16, 8]


def test_log_is_followed_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "train.log"
    steps = iter(("epoch 1\n", "epoch 2\n"))

    def ended() -> bool:
        """The run writes a line each time it is asked for, the last one just before it ends."""
        line = next(steps)
        with file.open("a") as log:
            log.write(line)
        return line == "epoch 2\n"

    assert list(follow(file, 0, ended, every_seconds=0)) == ["epoch 1\n", "epoch 2\n"]


def test_log_is_followed_from_where_its_last_lines_ended(tmp_path: Path) -> None:
    file = tmp_path / "train.log"
    file.write_text("epoch 1\n")
    said = size_of(file)
    file.write_text("epoch 1\nepoch 2\n")
    assert last_lines(file, 5, end=said) == ["epoch 1"]
    assert list(follow(file, said, lambda: True)) == ["epoch 2\n"]


def test_last_lines_of_a_long_file_are_whole(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("".join(f"line {number}\n" for number in range(1000)))
    assert last_lines(file, 2) == ["line 998", "line 999"]
    assert last_lines(file, 1000, reach=25) == ["line 998", "line 999"]
