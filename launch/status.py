"""How far the runs of a study are, told from their run folders."""

import json
from dataclasses import dataclass
from pathlib import Path

from geomano_hpc.launch.job import last_failure
from geomano_hpc.training.run_folder import RunFolder, run_folders

JOB_FILE = "job.json"
# Slurm's words for a job that will still do something, or may: a run is not submitted twice on a doubt.
_QUEUED = ("PENDING", "READY", "REQUEUED", "PREEMPTED", "SUSPENDED", "UNKNOWN")
_RUNNING = ("RUNNING", "CONFIGURING", "COMPLETING")


@dataclass(frozen=True)
class RunStatus:
    name: str
    state: str  # done, running, failed, queued, stopped, planned
    epoch: int
    epochs: int
    train_loss: float | None
    test_rel_l2: float | None
    note: str
    log: Path


def study_status(study: Path) -> list[RunStatus]:
    return [run_status(folder) for folder in run_folders(study)]


def run_status(folder: RunFolder) -> RunStatus:
    lines = folder.metrics()
    last = lines[-1] if lines else {}
    evaluated = [line["test_rel_l2"] for line in lines if line["test_rel_l2"] is not None]
    failure = last_failure(folder.path)
    state, note = _state(folder, bool(lines), failure)
    return RunStatus(
        folder.path.name,
        state,
        last.get("epoch", 0),
        folder.recipe().training.epochs,
        last.get("train_loss"),
        evaluated[-1] if evaluated else None,
        note,
        folder.logs / "train.log",
    )


def _state(folder: RunFolder, has_started: bool, failure: str | None) -> tuple[str, str]:
    if folder.is_finished:
        return "done", ""
    if folder.is_held:
        return "running", ""
    slurm_state = _slurm_state(folder)
    if slurm_state is not None:
        job_id, word = slurm_state
        note = f"Slurm job {job_id} is {word}"
        if word in _QUEUED or word in _RUNNING:
            return "queued" if word in _QUEUED else "running", note
        if failure is None:
            return "stopped", note
    if failure is not None:
        return "failed", failure
    if has_started:
        return "stopped", "launch the study again to go on"
    return "planned", ""


def _slurm_state(folder: RunFolder) -> tuple[str, str] | None:
    file = folder.path / JOB_FILE
    if not file.is_file():
        return None
    job = json.loads(file.read_text(encoding="utf-8"))
    if job["cluster"] != "slurm":
        return None
    import submitit

    return job["job_id"], submitit.SlurmJob(folder=job["folder"], job_id=job["job_id"]).state
