"""Build submitit executors: `local` starts processes on this machine, `slurm` submits array jobs."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geomano_hpc.errors import ConfigError

CLUSTERS = ("local", "slurm")


@dataclass(frozen=True)
class Resources:
    """What one run asks of a Slurm cluster."""

    partition: str | None = None
    account: str | None = None
    gpus: int = 1
    cpus: int = 8
    memory_gb: int | None = None
    minutes: int = 24 * 60
    at_once: int = 16

    def for_slurm(self, job_name: str) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "name": job_name,
            "timeout_min": self.minutes,
            "cpus_per_task": self.cpus,
            "nodes": 1,
            "tasks_per_node": 1,
            "slurm_array_parallelism": self.at_once,
        }
        if self.gpus:
            parameters["slurm_gpus_per_node"] = self.gpus
        if self.memory_gb is not None:
            parameters["mem_gb"] = self.memory_gb
        if self.partition is not None:
            parameters["slurm_partition"] = self.partition
        if self.account is not None:
            parameters["slurm_account"] = self.account
        return parameters


def make_executor(cluster: str, folder: Path, job_name: str, resources: Resources) -> Any:
    """A submitit executor whose job files and outputs go to `folder`."""
    import submitit

    assert cluster in CLUSTERS
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise ConfigError("--cluster slurm: no sbatch on this machine; log in to the cluster, or use --cluster local")
    executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
    if cluster == "slurm":
        executor.update_parameters(**resources.for_slurm(job_name))
    else:
        executor.update_parameters(name=job_name, timeout_min=resources.minutes)
    return executor


def sbatch_text(folder: Path, job_name: str, resources: Resources, jobs: int) -> str:
    """The submission file that `make_executor("slurm", ...)` would hand to sbatch for an array of so many jobs."""
    from submitit.slurm.slurm import SlurmExecutor

    class Description(SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:
            return 1  # describing a submission needs no cluster

    executor = Description(folder=folder)
    parameters = {key.removeprefix("slurm_"): value for key, value in resources.for_slurm(job_name).items()}
    executor.update_parameters(**executor._convert_parameters(parameters))
    executor.parameters["map_count"] = jobs
    return str(executor._make_submission_file_text("<one run of the study>", "dry-run"))
