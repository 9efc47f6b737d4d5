"""Studies on this machine, through submitit's local executor: real processes."""

import json
from pathlib import Path

import pytest

from geomano_hpc.cli.app import main
from geomano_hpc.config import Recipe, to_yaml
from geomano_hpc.errors import DataError, FolderInUseError
from geomano_hpc.launch import Study, machine, plan
from geomano_hpc.launch.job import TrainRun
from geomano_hpc.launch.machine import runs_at_once, share_of_machine
from geomano_hpc.launch.run import run_here
from geomano_hpc.launch.status import run_status, study_status
from geomano_hpc.training.records.run_folder import RunFolder


@pytest.fixture
def recipe_file(tiny_recipe: Recipe, tmp_path: Path) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(to_yaml(tiny_recipe))
    return file


@pytest.mark.slow
def test_one_failed_run_does_not_stop_the_others_and_a_second_launch_starts_only_what_is_missing(
    recipe_file: Path, tmp_path: Path
) -> None:
    # More samples than there are: that run fails when it starts.
    study = Study(name="s", recipe=str(recipe_file), axes={"data.train_samples": [4, 99]}, seeds=[0, 1])
    runs = plan(study)
    folder = tmp_path / "runs" / "s"
    outcome = run_here(study, runs, folder, at_once=2)
    assert outcome.started == [run.name for run in runs]
    assert sorted(outcome.failed) == sorted(run.name for run in runs if "train_samples-99_" in run.name)
    assert all("data.train_samples is 99, the store has 10" in error for error in outcome.failed.values())
    assert [status.state for status in study_status(folder)] == ["done", "done", "failed", "failed"]

    good = Study(name="s", recipe=str(recipe_file), axes={"data.train_samples": [4]}, seeds=[0, 1, 2])
    written = {path: path.stat().st_mtime_ns for path in folder.glob("*/result.json")}
    assert len(written) == 2
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
    folder.failure_file.write_text('{"error": "it broke"}')
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
    assert not folder.failure_file.exists()  # the run that holds the folder did not fail


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
    monkeypatch.setattr("geomano_hpc.launch.machine._installed_gpus", lambda: 2)
    monkeypatch.setattr("geomano_hpc.launch.machine._torch_has_gpus", lambda: False)  # a torch for CPUs cannot use them
    assert share_of_machine(0, 2) == {"OMP_NUM_THREADS": "4"}
    assert runs_at_once() == 2
    monkeypatch.setattr("geomano_hpc.launch.machine._torch_has_gpus", lambda: True)
    assert [share_of_machine(place, 3)["CUDA_VISIBLE_DEVICES"] for place in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert [share_of_machine(place, 2)["CUDA_VISIBLE_DEVICES"] for place in range(2)] == ["5", "7"]


@pytest.mark.parametrize(
    ("shown", "runs"), [(None, 4), ("0,1,2", 3), ("GPU-8a2b", 1), ("1,-1,2", 1), ("", 2), ("-1", 2)]
)
def test_launch_runs_one_for_each_gpu_that_is_visible_and_two_without(
    shown: str | None,
    runs: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\n" + "".join(f"echo 'GPU {n}: NVIDIA A100 (UUID: GPU-{n})'\n" for n in range(4)))
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("geomano_hpc.launch.machine._torch_has_gpus", lambda: True)
    machine._installed_gpus.cache_clear()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    monkeypatch.chdir(tmp_path)
    try:
        assert runs_at_once() == runs
        with pytest.raises(SystemExit, match="0"):
            main(["launch", "darcy_smoke", "--dry-run"])
        assert f"{runs} at the same time on this machine" in capsys.readouterr().out
    finally:
        machine._installed_gpus.cache_clear()


def test_refused_launch_leaves_nothing(recipe_file: Path, tmp_path: Path) -> None:
    study = Study(name="s", recipe=str(recipe_file), set={"data.store": str(tmp_path / "gone.zarr")}, seeds=[0])
    with pytest.raises(DataError, match="no such store"):
        run_here(study, plan(study), tmp_path / "runs" / "s", at_once=1)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


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
