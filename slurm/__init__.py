"""Where jobs run: submitit executors for this machine and for a Slurm cluster, profiles of clusters, a testbed."""

from geomano_hpc.slurm.executors import CLUSTERS, SlurmJobs, local_executor, sbatch_text, slurm_executor, submit
from geomano_hpc.slurm.profile import ClusterProfile, load_profile, profile_names
from geomano_hpc.slurm.snapshot import snapshot_code, snapshot_path

__all__ = [
    "CLUSTERS",
    "ClusterProfile",
    "SlurmJobs",
    "load_profile",
    "local_executor",
    "profile_names",
    "sbatch_text",
    "slurm_executor",
    "snapshot_code",
    "snapshot_path",
    "submit",
]
