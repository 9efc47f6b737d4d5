"""Studies on this machine, through submitit's local executor: real processes."""

import json
from pathlib import Path

import pytest

from geomano_hpc.config import Recipe, to_yaml
from geomano_hpc.errors import FolderInUseError
from geomano_hpc.launch import Study, plan
from geomano_hpc.launch.job import TrainRun, failure_file
from geomano_hpc.launch.run import run_here, share_of_machine
from geomano_hpc.launch.status import run_status, study_status
from geomano_hpc.training.records.run_folder import RunFolder


@pytest.fixture
def recipe_file(tiny_recipe: Recipe, tmp_path: Path) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(to_yaml(tiny_recipe))
    return file


def test_one_failed_run_does_not_stop_the_others_and_a_second_launch_starts_only_what_is_missing(
    recipe_file: Path, tmp_path: Path
) -> None:
    # More samples than there are: that run fails when it starts.
    study = Study(name="s", recipe=str(recipe_file), axes={"data.train_samples": [4, 99]}, seeds=[0, 1])
    runs = plan(study)
    folder = tmp_path / "runs" / "s"
    outcome = run_here(study, runs, folder, at_once=2)
    assert len(outcome.started) == 4
    assert sorted(outcome.failed) == sorted(run.name for run in runs if "train_samples-99_" in run.name)
    assert all("data.train_samples is 99, the store has 10" in error for error in outcome.failed.values())
    states = {status.name: status.state for status in study_status(folder)}
    assert sorted(states.values()) == ["done", "done", "failed", "failed"]

    good = Study(name="s", recipe=str(recipe_file), axes={"data.train_samples": [4]}, seeds=[0, 1, 2])
    written = {path: path.stat().st_mtime_ns for path in folder.glob("*/result.json")}
    outcome = run_here(good, plan(good), folder, at_once=2)
    assert (outcome.finished_before, len(outcome.started), outcome.failed) == (2, 1, {})
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_states_of_a_run(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.write_recipe(tiny_recipe)
    assert run_status(folder).state == "pending"
    with folder.held():
        assert run_status(folder).state == "running"
    folder.metrics_file.write_text(json.dumps({"epoch": 1, "train_loss": 0.5, "test_rel_l2": 0.25}) + "\n{cut off")
    status = run_status(folder)
    assert (status.state, status.epoch, status.epochs, status.train_loss, status.test_rel_l2) == (
        "stopped",
        1,
        3,
        0.5,
        0.25,
    )
    failure_file(folder.path).write_text('{"error": "it broke"}')
    assert (run_status(folder).state, run_status(folder).note) == ("failed", "it broke")
    folder.write_result({"rel_l2": 0.1})
    assert run_status(folder).state == "done"


def test_run_that_is_in_use_is_not_started_again(recipe_file: Path, tmp_path: Path) -> None:
    study = Study(name="s", recipe=str(recipe_file), seeds=[0])
    (run,) = plan(study)
    folder = RunFolder(tmp_path / "s" / run.name)
    with folder.held():
        outcome = run_here(study, [run], tmp_path / "s", at_once=1)
        assert (outcome.active_before, outcome.started, outcome.failed) == ([run.name], [], {})
        with pytest.raises(FolderInUseError):  # two launches at the same moment
            TrainRun(str(folder.path), str(tmp_path))()
    assert not failure_file(folder.path).exists()  # the run that holds the folder did not fail


def test_finished_study_does_not_need_its_data(recipe_file: Path, tmp_path: Path) -> None:
    study = Study(name="s", recipe=str(recipe_file), set={"data.store": str(tmp_path / "gone.zarr")}, seeds=[0])
    (run,) = plan(study)
    folder = RunFolder(tmp_path / "s" / run.name)
    folder.write_recipe(run.recipe)
    folder.write_result({"rel_l2": 0.1})
    assert run_here(study, [run], tmp_path / "s", at_once=1).finished_before == 1


def test_local_runs_share_threads_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert share_of_machine(0, 2) == {"OMP_NUM_THREADS": "4"}
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [share_of_machine(place, 3)["CUDA_VISIBLE_DEVICES"] for place in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert [share_of_machine(place, 2)["CUDA_VISIBLE_DEVICES"] for place in range(2)] == ["5", "7"]


@pytest.mark.parametrize(("word", "state"), [("UNKNOWN", "queued"), ("RUNNING", "running"), ("NODE_FAIL", "stopped")])
def test_slurm_states(
    word: str, state: str, tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.write_recipe(tiny_recipe)
    (folder.path / "job.json").write_text(json.dumps({"cluster": "slurm", "job_id": "7_1", "folder": str(tmp_path)}))
    monkeypatch.setattr("submitit.SlurmJob.state", word)
    assert (run_status(folder).state, run_status(folder).note) == (state, f"Slurm job 7_1 is {word}")


def test_job_submits_itself_again_when_it_is_preempted() -> None:
    job = TrainRun("runs/s/r", "/")
    assert job.checkpoint().function is job
