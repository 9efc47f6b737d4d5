"""Build submitit executors: `local` starts processes on this machine, `slurm` submits jobs and arrays of jobs."""

import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geomano_hpc.errors import ConfigError
from geomano_hpc.slurm.profile import ClusterProfile

CLUSTERS = ("local", "slurm")


@dataclass(frozen=True)
class SlurmJobs:
    """Jobs of one kind: where they run, with which code, and how many processes each has."""

    name: str
    profile: ClusterProfile
    code: Path | None = None  # the snapshot that they import geomano_hpc from
    nodes: int = 1
    tasks_per_node: int = 1
    cpus: int = 1
    gpus: int = 0
    srun: tuple[str, ...] = ()
    after: tuple[str, ...] = ()  # ids of jobs that must have ended, well or not

    @classmethod
    def training(cls, name: str, profile: ClusterProfile, code: Path | None = None) -> "SlurmJobs":
        """A rank per GPU. One that dies ends the others, which would wait for it."""
        size = (profile.nodes, profile.tasks_per_node, profile.cpus, profile.gpus)
        several = profile.nodes * profile.tasks_per_node > 1
        return cls(name, profile, code, *size, srun=("--kill-on-bad-exit=1",) if several else ())

    def parameters(self) -> dict[str, Any]:
        """For submitit's SlurmExecutor, by the names that it has for them."""
        profile = self.profile
        partition = profile.partition if self.gpus else profile.cpu_partition or profile.partition
        found = {
            "job_name": self.name,
            "partition": partition,
            "account": profile.account,
            "qos": profile.qos,
            "constraint": profile.constraint if self.gpus or not profile.cpu_partition else None,
            "gres": profile.gres if self.gpus else None,
            "gpus_per_node": self.gpus if self.gpus and not profile.gres else None,
            "nodes": self.nodes,
            "ntasks_per_node": self.tasks_per_node,
            "cpus_per_task": self.cpus,
            "mem": None if profile.memory_gb is None else f"{profile.memory_gb}GB",
            "time": profile.minutes,
            "signal_delay_s": profile.stop_seconds,
            "array_parallelism": profile.at_once,
            "dependency": f"afterany:{':'.join(self.after)}" if self.after else None,
            # Without it a cluster with JobRequeue=0 refuses to requeue.
            "additional_parameters": {"requeue": True, **profile.sbatch},
            # Since Slurm 22.05 srun does not take over the cores per task of sbatch.
            "srun_args": [f"--cpus-per-task={self.cpus}", *self.srun],
            "setup": self._setup(),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _setup(self) -> list[str]:
        # A run's last bits depend on its threads.
        variables = {"OMP_NUM_THREADS": str(self.cpus), **self.profile.environment}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        lines += [f"module load {shlex.quote(module)}" for module in self.profile.modules]
        lines += self.profile.setup
        if self.code is not None:  # last, so that no module comes before it, and neither does the folder of the job
            lines.append("export PYTHONSAFEPATH=1")
            lines.append(f"export PYTHONPATH={shlex.quote(str(self.code))}${{PYTHONPATH:+:$PYTHONPATH}}")
        return lines


def local_executor(folder: Path, job_name: str, minutes: int) -> Any:
    """A submitit executor that starts processes on this machine; their files go to `folder`."""
    import submitit

    executor = submitit.AutoExecutor(folder=folder, cluster="local")
    executor.update_parameters(name=job_name, timeout_min=minutes)
    return executor


def slurm_executor(folder: Path, jobs: SlurmJobs) -> Any:
    """A submitit executor that hands such jobs to sbatch; their files go to `folder`, which every node must see."""
    from submitit.slurm.slurm import SlurmExecutor

    for tool in ("sbatch", "srun"):
        if shutil.which(tool) is None:
            raise ConfigError(
                f"--cluster slurm: no {tool} on this machine; log in to the cluster, or use --cluster local"
            )
    executor = SlurmExecutor(folder=folder.resolve(), max_num_timeout=10)
    executor.update_parameters(**jobs.parameters())
    return executor


def submit(executor: Any, functions: Sequence[Any]) -> list[Any]:
    """The submitted jobs: one, or the tasks of an array. What sbatch refuses is an error in its own words."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError
    from submitit.helpers import clean_env

    user_set = {name: value for name, value in os.environ.items() if name.startswith(("SBATCH_", "SLURM_CONF"))}
    try:
        with clean_env():  # submitted from within a job, such as an interactive one, it must not inherit its shape
            os.environ.update(user_set)
            with executor.batch():
                jobs = [executor.submit(function) for function in functions]
        return jobs
    except (FailedJobError, FailedSubmissionError) as error:
        raise ConfigError(f"sbatch refused the job: {_said(error)}") from None


def _said(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line.removeprefix("sbatch: error: ") for line in lines if line.startswith("sbatch: error: ")]
    return "; ".join(said or lines[-1:])


def sbatch_text(folder: Path, jobs: SlurmJobs, count: int, command: str = "<one run of the study>") -> str:
    """The submission file that would be handed to sbatch for so many such jobs."""
    from submitit.slurm.slurm import SlurmExecutor

    class Description(SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:
            return 1  # describing a submission needs no cluster

    executor = Description(folder=folder)
    executor.update_parameters(**jobs.parameters())
    if count > 1:
        executor.parameters["map_count"] = count
    return str(executor._make_submission_file_text(command, "dry-run"))
