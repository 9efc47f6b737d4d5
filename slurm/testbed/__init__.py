"""A real Slurm on this one machine, for development and tests: munge, MariaDB, slurmdbd, slurmctld and two nodes."""

from geomano_hpc.slurm.testbed.cluster import Testbed, default_folder

__all__ = ["Testbed", "default_folder"]
