"""What a job does that was told to stop: its state is on disk, so it asks Slurm to be started again, and ends."""

import os
import signal
import subprocess
import sys
import time
from typing import NoReturn

from geomano_hpc.errors import GeomanoError, PreemptedError
from geomano_hpc.launchers import own_job
from geomano_hpc.training.records.run_folder import RunFolder

# A run that was stopped so often without a step in between needs a longer time limit, not another start.
_STARTS_WITHOUT_PROGRESS = 5


def end_preempted(error: PreemptedError, run: RunFolder | None = None) -> NoReturn:
    """End this rank with the code that says "start me again". Rank 0 asks for the new start, the others wait for it.

    Outside of a job of its own there is nobody to ask.
    """
    if error.rank:  # were it the first to end, `srun --kill-on-bad-exit` would take rank 0 along
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(60)
    elif (job := own_job(os.environ)) is not None:
        _requeue(job, run)
    _say(str(error))
    sys.exit(error.exit_code)


def _requeue(job: str, run: RunFolder | None) -> None:
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


def _count_starts_without_progress(run: RunFolder) -> None:
    times = run.count_requeue()
    if times > _STARTS_WITHOUT_PROGRESS:
        raise GeomanoError(
            f"{run.path}: stopped {times} times without a step in between; give it more time "
            "(--minutes, or the profile)"
        )
