"""What a stopped job asks of Slurm, with programs in the place of Slurm's own that note how they were called."""

import json
import os
from pathlib import Path

import pytest

from geomano_hpc.errors import GeomanoError, PreemptedError
from geomano_hpc.slurm.rendezvous import meet, port
from geomano_hpc.slurm.requeue import end_preempted
from geomano_hpc.training.records.run_folder import RunFolder


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job 7; squeue says what stands in the file `state`."""
    (tmp_path / "squeue").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {tmp_path}/state\n')
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\nexit $(cat {tmp_path}/code)\n')
    (tmp_path / "state").write_text("RUNNING\n")
    (tmp_path / "code").write_text("0")
    for name in ("squeue", "scontrol"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    (tmp_path / "run" / "checkpoints" / "step_000003").mkdir(parents=True)
    return tmp_path


def stop(slurm: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        end_preempted(PreemptedError("stopped by SIGUSR2 after step 3"), RunFolder(slurm / "run"))
    assert ended.value.code == 75


def test_running_job_asks_for_a_requeue(slurm: Path) -> None:
    stop(slurm)
    assert (slurm / "called").read_text() == "requeue 7\n"


def test_task_of_an_array_asks_for_itself_alone(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last task of an array has the number of the array as its job id."""
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "4")
    stop(slurm)
    assert "--jobs=7_4" in (slurm / "asked").read_text()
    assert (slurm / "called").read_text() == "requeue 7_4\n"


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "PENDING", ""])
def test_job_that_was_cancelled_or_requeued_by_others_asks_for_nothing(state: str, slurm: Path) -> None:
    (slurm / "state").write_text(state)
    stop(slurm)
    assert not (slurm / "called").exists()


def test_refused_requeue_is_an_error_that_says_how_to_go_on(slurm: Path) -> None:
    (slurm / "code").write_text("1")
    with pytest.raises(GeomanoError, match=r"Slurm refused: scontrol requeue 7.*launch the study again to go on"):
        end_preempted(PreemptedError("stopped"), RunFolder(slurm / "run"))


def test_run_that_never_comes_further_is_not_requeued_forever(slurm: Path) -> None:
    for _ in range(5):
        stop(slurm)
    with pytest.raises(GeomanoError, match="stopped 6 times without a step in between; give it more time"):
        end_preempted(PreemptedError("stopped"), RunFolder(slurm / "run"))
    assert len((slurm / "called").read_text().splitlines()) == 5
    (slurm / "run" / "checkpoints" / "step_000004").mkdir()
    stop(slurm)
    assert json.loads((slurm / "run" / "requeues.json").read_text())["times"] == 1


def test_outside_of_slurm_nobody_is_asked(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID")
    stop(slurm)
    assert not (slurm / "called").exists()


def test_local_run_inside_of_somebodys_interactive_job_does_not_requeue_that_job(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    stop(slurm)
    assert not (slurm / "called").exists()


def test_ranks_meet_at_another_port_after_each_requeue(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {port("7", str(restarts)) for restarts in range(5)}
    assert len(found) == 5
    assert all(20000 <= number <= 32000 for number in found)  # where no outgoing connection takes one
    monkeypatch.delenv("MASTER_PORT", raising=False)
    meet()  # one task alone meets nobody
    assert "MASTER_PORT" not in os.environ
