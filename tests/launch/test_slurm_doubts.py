"""Where Slurm's word for a run is not the last one, with programs in the place of Slurm's own."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from geomano_hpc.atomic import write_json
from geomano_hpc.config import Recipe, to_yaml
from geomano_hpc.launch import Study, plan, run
from geomano_hpc.launch.status import run_status
from geomano_hpc.slurm import ClusterProfile
from geomano_hpc.training.records.run_folder import RunFolder

Program = Callable[[str, str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A program of this name that runs these lines of sh, before the one that is installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def write(name: str, lines: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (folder / name).chmod(0o755)

    return write


@pytest.mark.parametrize("word", ["PREEMPTED", "UNKNOWN"])
def test_job_that_left_the_queue_is_not_waited_for(
    word: str, program: Program, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "s" / "one")
    folder.write_recipe(tiny_recipe)
    job = f"{secrets.randbelow(10**9)}_0"  # submitit remembers what it was told of a job
    write_json(folder.job_file, {"cluster": "slurm", "job_id": job, "folder": str(tmp_path / "jobs")})
    program("sacct", "exit 1" if word == "UNKNOWN" else f"printf 'JobID|State|NodeList\\n{job}|{word}|node1\\n'")

    program("squeue", f"echo 1_7; echo {job}")
    assert run_status(folder).state == "queued"  # it is requeued
    program("squeue", "exit 1")
    assert run_status(folder).state == "queued"  # nobody knows: it is not submitted twice on a doubt
    program("squeue", "echo 1_7")
    status = run_status(folder)
    assert (status.state, status.note) == ("stopped", f"Slurm job {job} is {word} and no longer in the queue")
    write_json(folder.cancelled_file, {})
    assert run_status(folder).state == "cancelled"


def test_runs_that_are_cancelled_while_they_are_submitted_do_not_train(
    program: Program, tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(to_yaml(tiny_recipe))
    study = Study(name="s", recipe=str(recipe), seeds=[0, 1, 2])
    planned, folder = plan(study), tmp_path / "runs" / "s"
    before, meanwhile, trained = (folder / one.name for one in planned)
    submitted: list[str] = []

    def copy_code(_folder: Path) -> Path:
        write_json(RunFolder(before).cancelled_file, {})
        return tmp_path

    def submit(_executor: object, functions: list[Any]) -> list[Any]:
        submitted.extend(function.run for function in functions)
        write_json(RunFolder(meanwhile).cancelled_file, {})
        return [SimpleNamespace(job_id=f"5_{number}") for number in range(len(functions))]

    executor = SimpleNamespace(update_parameters=lambda **_parameters: None)
    monkeypatch.setattr(run, "slurm_executor", lambda *_arguments: executor)
    monkeypatch.setattr(run, "snapshot_code", copy_code)
    monkeypatch.setattr(run, "submit", submit)
    program("scancel", f'echo "$@" >> {tmp_path}/called')
    outcome = run.submit_to_slurm(study, planned, folder, ClusterProfile(), report=False)
    assert [Path(path).name for path in submitted] == [meanwhile.name, trained.name]
    assert (tmp_path / "called").read_text() == "5_0\n"
    assert outcome.left == [before.name, meanwhile.name]
