"""How far the runs of a study are, told from their run folders, the claims of living launches, and Slurm."""

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geomano_hpc.config import Recipe
from geomano_hpc.launch.claims import claimed_runs
from geomano_hpc.launch.logs import last_error, last_lines
from geomano_hpc.launch.manifest import runs_of_study
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.records.run_state import JobState, State, state_of

# Slurm's words for a job that will still do something, or may: a run is not submitted twice on a doubt.
_QUEUED = ("PENDING", "READY", "REQUEUED", "SUSPENDED", "PREEMPTED", "UNKNOWN")
_IN_DOUBT = ("PREEMPTED", "UNKNOWN")  # it comes back, or is gone for good: only the queue tells
_RUNNING = ("RUNNING", "CONFIGURING", "COMPLETING")
_FAILED = ("FAILED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
_LINES_FOR_SPEED = 5


@dataclass(frozen=True)
class RunStatus:
    name: str
    recipe: Recipe
    state: State
    epoch: int
    epochs: int
    train_loss: float | None
    test_rel_l2: float | None
    validation_rel_l2: float | None  # of runs that are judged on such a split
    seconds_left: float | None  # of a run that is training: told from its last epochs
    note: str
    log: Path

    @property
    def error(self) -> tuple[float, str] | None:
        """The newest error and its split: of a finished run that of the test split, which its result is."""
        if self.validation_rel_l2 is not None and self.state != "done":
            return self.validation_rel_l2, "validation"
        return None if self.test_rel_l2 is None else (self.test_rel_l2, "test")


@dataclass(frozen=True)
class SlurmJob:
    job_id: str
    word: str  # Slurm's own for its state

    @property
    def state(self) -> JobState:
        if self.word in _QUEUED:
            return "queued"
        if self.word in _RUNNING:
            return "running"
        if self.word.startswith("CANCELLED"):
            return "cancelled"
        return "failed" if self.word in _FAILED else "ended"

    @property
    def note(self) -> str:
        return f"Slurm job {self.job_id} is {self.word}"


def study_status(study: Path) -> list[RunStatus]:
    folders = runs_of_study(study)
    claimed, jobs = claimed_runs(study), _slurm_jobs(folders)
    return [_status(folder, folder.path.name in claimed, jobs.get(folder.path.name)) for folder in folders]


def study_states(study: Path) -> dict[str, State]:
    """Run -> state, without what a table shows besides: a launch of a thousand runs need not read their recipes."""
    folders = runs_of_study(study)
    claimed, jobs = claimed_runs(study), _slurm_jobs(folders)
    return {name: _state(folder, name in claimed, jobs.get(name)) for folder in folders for name in [folder.path.name]}


def run_status(folder: RunFolder) -> RunStatus:
    claimed = folder.path.name in claimed_runs(folder.path.parent)
    return _status(folder, claimed, _slurm_jobs([folder]).get(folder.path.name))


def _state(folder: RunFolder, claimed: bool, job: SlurmJob | None) -> State:
    return state_of(folder, claimed, None if job is None else job.state)


def _status(folder: RunFolder, claimed: bool, job: SlurmJob | None) -> RunStatus:
    lines = _last_metrics(folder)
    last = lines[-1] if lines else {}
    recipe = folder.recorded_recipe()
    epoch, epochs = last.get("epoch", 0), recipe.training.epochs
    state = _state(folder, claimed, job)
    note, log = _note(folder, state, job)
    result = folder.result() if state == "done" else None
    return RunStatus(
        folder.path.name,
        recipe,
        state,
        epoch,
        epochs,
        last.get("train_loss"),
        result["rel_l2"] if result else _newest(lines, "test"),
        _newest(lines, "validation"),
        _seconds_left(folder, lines, epochs - epoch) if state == "running" else None,
        note,
        log or folder.log_file,
    )


def _newest(lines: list[dict[str, Any]], split: str) -> float | None:
    """The newest error on a split, if an epoch was judged on it."""
    found = [line[f"{split}_rel_l2"] for line in lines if line.get(f"{split}_rel_l2") is not None]
    return found[-1] if found else None


def _note(folder: RunFolder, state: State, job: SlurmJob | None) -> tuple[str, Path | None]:
    """What to say of the state and, where the job went wrong without a word of the run's own, the file to look into."""
    if state == "failed":
        failure = folder.failure()
        if failure is not None:
            return failure.strip().splitlines()[-1] if failure.strip() else "no message", None
        said, file = last_error(folder)
        return ": ".join(word for word in (job.note if job else "", said) if word), file
    if state == "cancelled":
        return "launch or retry the study to go on", None
    if state == "stopped":
        return job.note if job else "launch the study again to go on", None
    waits_or_runs_there = job is not None and job.state == state and not folder.is_held
    return job.note if job and waits_or_runs_there else "", None


def _last_metrics(folder: RunFolder) -> list[dict[str, Any]]:
    """The last lines of the metrics: those of a thousand long runs are not all read for a table."""
    if not folder.metrics_file.is_file():
        return []
    found = []
    for line in last_lines(folder.metrics_file, 200):
        try:
            found.append(json.loads(line))
        except ValueError:  # cut off by a kill, or just being written
            continue
    return found


def _seconds_left(folder: RunFolder, lines: Sequence[dict[str, Any]], epochs: int) -> float | None:
    """By the time of the last epochs, less the time since the last of them ended."""
    seconds = [line["seconds"] for line in lines[-_LINES_FOR_SPEED:] if "seconds" in line]
    if not seconds:
        return None
    since = time.time() - folder.metrics_file.stat().st_mtime
    return max(0.0, epochs * sum(seconds) / len(seconds) - since)


def _slurm_jobs(folders: Sequence[RunFolder]) -> dict[str, SlurmJob]:
    """Run -> its job, of every run that went to Slurm and is not finished."""
    jobs: dict[str, Any] = {}
    for folder in folders:
        job = {} if folder.is_finished else folder.job()
        if job.get("cluster") == "slurm":
            import submitit

            jobs[folder.path.name] = submitit.SlurmJob(folder=job["folder"], job_id=job["job_id"])
    # All are made before the first is asked: submitit then asks Slurm once for all of them.
    found = {name: SlurmJob(str(job.job_id), str(job.state)) for name, job in jobs.items()}
    if not any(job.word in _IN_DOUBT for job in found.values()):
        return found
    queue = _jobs_in_the_queue()
    return {name: _settled(job, queue is None or job.job_id in queue) for name, job in found.items()}


def _settled(job: SlurmJob, may_come_back: bool) -> SlurmJob:
    if may_come_back or job.word not in _IN_DOUBT:
        return job
    return SlurmJob(job.job_id, f"{job.word} and no longer in the queue")


def _jobs_in_the_queue() -> set[str] | None:
    """Ids as submitit has them; None where Slurm does not answer."""
    command = ["squeue", "--noheader", "--array", "--format=%i"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return set(found.stdout.split())
