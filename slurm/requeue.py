"""What a job does that was told to stop: its state is on disk, so it asks Slurm to be started again, and ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from geomano_hpc.atomic import write_json
from geomano_hpc.errors import GeomanoError, PreemptedError

# A run that was stopped so often without a step in between needs a longer time limit, not another start.
_STARTS_WITHOUT_PROGRESS = 5


def end_preempted(error: PreemptedError, run: Path | None = None) -> NoReturn:
    """End this rank with the code that says "start me again". Rank 0 asks for the new start, the others wait for it.

    Outside of Slurm there is nobody to ask.
    """
    if error.rank:  # were it the first to end, `srun --kill-on-bad-exit` would take rank 0 along
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(60)
    elif "SLURM_JOB_ID" in os.environ:
        _requeue(_own_job(), run)
    _say(str(error))
    sys.exit(error.exit_code)


def _own_job() -> str:
    """Task t of an array a is a_t: one of its tasks has the number of the array as its own, and would ask for all."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]


def _requeue(job: str, run: Path | None) -> None:
    """Ask for it if nobody else did.

    A time limit that comes near, and a preemption with a grace time, leave the job RUNNING and in our hands: one that
    ends by itself is not started again. After scancel, or a requeue by someone else, it is COMPLETING: to ask now would
    bring back a run that its user has cancelled.
    """
    state = _slurm("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    if state != "RUNNING":
        _say(f"Slurm job {job} is {state or 'gone'}: not asking for a requeue")
        return
    if run is not None:
        _count_starts_without_progress(run)
    _slurm("scontrol", "requeue", job)
    _say(f"asked Slurm to requeue job {job}")


def _say(text: str) -> None:
    print(text, flush=True)  # to the job's own output: the log of the run is closed by now


def _slurm(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GeomanoError(f"cannot ask Slurm for a requeue: {error}; launch the study again to go on") from None
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise GeomanoError(f"Slurm refused: {' '.join(command)}: {said}; launch the study again to go on")
    return done.stdout.strip()


def _count_starts_without_progress(run: Path) -> None:
    newest = max((path.name for path in (run / "checkpoints").glob("[!.]*")), default="")
    file = run / "requeues.json"
    before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    times = before["times"] + 1 if before.get("checkpoint") == newest else 1
    write_json(file, {"checkpoint": newest, "times": times})
    if times > _STARTS_WITHOUT_PROGRESS:
        raise GeomanoError(
            f"{run}: stopped {times} times without a step in between; give it more time (--minutes, or the profile)"
        )
