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
from geomano_hpc.launch.job import last_failure
from geomano_hpc.launch.logs import last_error, last_lines, read_job
from geomano_hpc.launch.manifest import runs_of_study
from geomano_hpc.training.records.run_folder import RunFolder

STATES = ("running", "queued", "pending", "stopped", "failed", "cancelled", "done")
# Nobody is at these: a launch starts them.
TO_START = ("pending", "stopped", "failed", "cancelled")

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
    state: str  # one of STATES
    epoch: int
    epochs: int
    train_loss: float | None
    test_rel_l2: float | None
    seconds_left: float | None  # of a run that is training: told from its last epochs
    note: str
    log: Path


def cancelled_file(run: Path) -> Path:
    return run / "cancelled.json"


def study_status(study: Path) -> list[RunStatus]:
    folders = runs_of_study(study)
    claimed, jobs = claimed_runs(study), _slurm_states(folders)
    return [_status(folder, folder.path.name in claimed, jobs.get(folder.path.name)) for folder in folders]


def study_states(study: Path) -> dict[str, str]:
    """Run -> state, without what a table shows besides: a launch of a thousand runs need not read their recipes."""
    folders = runs_of_study(study)
    claimed, jobs = claimed_runs(study), _slurm_states(folders)
    states = {}
    for folder in folders:
        name, metrics = folder.path.name, folder.metrics_file
        has_started = metrics.is_file() and metrics.stat().st_size > 0
        states[name], *_ = _state(folder, has_started, name in claimed, jobs.get(name))
    return states


def run_status(folder: RunFolder) -> RunStatus:
    claimed = folder.path.name in claimed_runs(folder.path.parent)
    return _status(folder, claimed, _slurm_states([folder]).get(folder.path.name))


def _status(folder: RunFolder, claimed: bool, slurm: tuple[str, str] | None) -> RunStatus:
    lines = _last_metrics(folder)
    last = lines[-1] if lines else {}
    evaluated = [line["test_rel_l2"] for line in lines if line.get("test_rel_l2") is not None]
    recipe = folder.recipe()
    epoch, epochs = last.get("epoch", 0), recipe.training.epochs
    state, note, log = _state(folder, bool(lines), claimed, slurm)
    return RunStatus(
        folder.path.name,
        recipe,
        state,
        epoch,
        epochs,
        last.get("train_loss"),
        evaluated[-1] if evaluated else None,
        _seconds_left(folder, lines, epochs - epoch) if state == "running" else None,
        note,
        log or folder.logs / "train.log",
    )


def _state(
    folder: RunFolder, has_started: bool, claimed: bool, slurm: tuple[str, str] | None
) -> tuple[str, str, Path | None]:
    """State, note and, where something went wrong, the file to look into."""
    if folder.is_finished:
        return "done", "", None
    if folder.is_held:
        return "running", "", None
    job_id, word = slurm or ("", "")
    job_note = f"Slurm job {job_id} is {word}"
    if word in _QUEUED or word in _RUNNING:
        return "queued" if word in _QUEUED else "running", job_note, None
    failure = last_failure(folder.path)
    if failure is not None:
        return "failed", failure.strip().splitlines()[-1] if failure.strip() else "no message", None
    if cancelled_file(folder.path).is_file() or word.startswith("CANCELLED"):
        return "cancelled", "launch or retry the study to go on", None
    if claimed:
        return "queued", "", None
    if word in _FAILED:
        said, file = last_error(folder)
        return "failed", f"{job_note}: {said}" if said else job_note, file
    if slurm is not None:
        return "stopped", job_note, None
    if has_started:
        return "stopped", "launch the study again to go on", None
    return "pending", "", None


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


def _slurm_states(folders: Sequence[RunFolder]) -> dict[str, tuple[str, str]]:
    """Run -> Slurm's job id and its word for the state, of every run that went to Slurm and is not finished."""
    jobs: dict[str, Any] = {}
    for folder in folders:
        job = {} if folder.is_finished else read_job(folder)
        if job.get("cluster") == "slurm":
            import submitit

            jobs[folder.path.name] = submitit.SlurmJob(folder=job["folder"], job_id=job["job_id"])
    # All are made before the first is asked: submitit then asks Slurm once for all of them.
    states = {name: (str(job.job_id), str(job.state)) for name, job in jobs.items()}
    if not any(word in _IN_DOUBT for _, word in states.values()):
        return states
    queue = _jobs_in_the_queue()
    return {name: (job, _settled(word, queue is None or job in queue)) for name, (job, word) in states.items()}


def _settled(word: str, may_come_back: bool) -> str:
    return word if may_come_back or word not in _IN_DOUBT else f"{word} and no longer in the queue"


def _jobs_in_the_queue() -> set[str] | None:
    """Ids as submitit has them; None where Slurm does not answer."""
    command = ["squeue", "--noheader", "--array", "--format=%i"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return set(found.stdout.split())
