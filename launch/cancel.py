"""Stop runs that are queued or training, and mark them, so that everybody sees that it was on purpose."""

import contextlib
import getpass
import os
import platform
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from geomano_hpc.errors import GeomanoError
from geomano_hpc.launch.claims import claimed_runs
from geomano_hpc.launch.status import study_states
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.records.run_state import ACTIVE

_PATIENCE = 10.0  # seconds to get through to a run that is just being started


@dataclass
class Cancelled:
    stopped: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)  # neither queued nor training: nothing to stop
    out_of_reach: dict[str, str] = field(default_factory=dict)  # run -> why it goes on


def cancel(study: Path, names: Sequence[str]) -> Cancelled:
    """Stop these runs of the study. Their checkpoints stay: launched again, they go on."""
    states = study_states(study)
    claimed = claimed_runs(study)
    done = Cancelled()
    for name in names:
        if states[name] not in ACTIVE:
            done.idle.append(name)
            continue
        run = RunFolder(study / name)
        by = f"{getpass.getuser()}@{platform.node()}"
        at = datetime.now(UTC).isoformat(timespec="seconds")
        run.write_cancelled(at, by)
        try:
            # A launch that lives sees the mark and stops the run itself.
            if name not in claimed:
                stop_job(run.job())
            done.stopped.append(name)
        except GeomanoError as error:
            run.cancelled_file.unlink(missing_ok=True)
            done.out_of_reach[name] = str(error)
    return done


def stop_job(job: dict[str, Any]) -> None:
    if job.get("cluster") == "slurm":
        import submitit

        try:
            submitit.SlurmJob(folder=job["folder"], job_id=job["job_id"]).cancel()
        except Exception as error:  # submitit hands on whatever scancel's start or end raises
            raise GeomanoError(f"scancel {job['job_id']} failed: {error}") from None
    elif job.get("cluster") == "local" and _is_controller(int(job["job_id"]), job["folder"]):
        until = time.monotonic() + _PATIENCE  # its launch was killed, and nobody else asks it again
        while _is_controller(int(job["job_id"]), job["folder"]) and time.monotonic() < until:
            stop_locally(int(job["job_id"]))
            time.sleep(0.2)
    else:
        raise GeomanoError("it was started by `geomano train` or on another machine; stop it there")


def stop_locally(controller: int) -> None:
    """Ask a run of this machine to save its state and end. To be asked again until it has: a signal that comes while
    the run is being started is lost. submitit's process hands SIGTERM on; after SIGINT it would kill the run."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(controller, signal.SIGTERM)


def _is_controller(pid: int, jobs: str) -> bool:
    """Whether the process is the one that was started for the job, and not another that got its number since."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return "submitit.local._local" in words and str(Path(jobs).resolve()) in [
        str(Path(w).resolve()) for w in words if w
    ]
