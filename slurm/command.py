"""Jobs that run a `geomano` command: data preparation as MPI ranks, a report when all runs are done."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geomano_hpc.errors import ConfigError, GeomanoError, PreemptedError
from geomano_hpc.launchers import task_of_slurm
from geomano_hpc.slurm.executors import SlurmJobs, slurm_executor, submit
from geomano_hpc.slurm.profile import ClusterProfile
from geomano_hpc.slurm.requeue import end_preempted
from geomano_hpc.slurm.snapshot import snapshot_code


@dataclass(frozen=True)
class GeomanoCommand:
    """A picklable job. Each task of the job is one process of the command, so that `srun --mpi` gives it its rank."""

    words: tuple[str, ...]
    working_folder: str

    def __call__(self) -> None:
        rank = task_of_slurm(os.environ)
        command = [sys.executable, "-m", "geomano_hpc", *self.words]
        # A process of its own: submitit's signal handlers are not in MPI's way. Slurm sends SIGUSR2 to every process of
        # the job, but it is for submitit to act on.
        done = subprocess.run(command, cwd=self.working_folder, check=False, preexec_fn=_ignore_usr2)
        said = f"geomano {' '.join(self.words[:2])}"
        if done.returncode == -signal.SIGTERM:
            end_preempted(PreemptedError(f"{said} was stopped by SIGTERM", rank))
        if done.returncode:
            raise GeomanoError(f"{said} ended with exit code {done.returncode} on rank {rank}")

    def checkpoint(self) -> Any:
        """submitit calls this before a time-out or a preemption: started again, the command goes on where it was."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _ignore_usr2() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


@dataclass(frozen=True)
class SubmittedCommand:
    job_id: str
    log: Path
    errors: Path


def mpi_jobs(name: str, profile: ClusterProfile, ranks: int, nodes: int, code: Path | None = None) -> SlurmJobs:
    """A job of so many MPI ranks with a core each, and no GPU."""
    if ranks % nodes:
        raise ConfigError(f"--ranks {ranks} on --nodes {nodes}: every node must have as many ranks as the others")
    srun = (f"--mpi={profile.mpi}", "--kill-on-bad-exit=1")
    return SlurmJobs(name, profile, code, nodes, ranks // nodes, srun=srun)


def submit_ranks(
    words: tuple[str, ...], folder: Path, profile: ClusterProfile, ranks: int, nodes: int
) -> SubmittedCommand:
    """Submit the command as an MPI job; what it prints, and the code that it runs, go to `folder`."""
    name = "-".join(words[:2])
    mpi_jobs(name, profile, ranks, nodes)  # refused before anything is copied
    folder = folder.resolve()
    executor = slurm_executor(folder, mpi_jobs(name, profile, ranks, nodes, snapshot_code(folder)))
    (job,) = submit(executor, [GeomanoCommand(words, str(Path.cwd()))])
    return SubmittedCommand(job.job_id, job.paths.stdout, job.paths.stderr)
