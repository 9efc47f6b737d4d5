"""Where jobs run: submitit executors for this machine and for a Slurm cluster."""

from geomano_hpc.slurm.executors import CLUSTERS, Resources, make_executor, sbatch_text

__all__ = ["CLUSTERS", "Resources", "make_executor", "sbatch_text"]
