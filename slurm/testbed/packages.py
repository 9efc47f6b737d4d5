"""What the testbed needs of Debian."""

from pathlib import Path

# A program of each package, by the Debian package that has it.
PACKAGES = {
    "slurmctld": "/usr/sbin/slurmctld",
    "slurmd": "/usr/sbin/slurmd",
    "slurm-client": "/usr/bin/srun",
    "slurmdbd": "/usr/sbin/slurmdbd",
    "slurm-wlm-basic-plugins": "/usr/lib/*-linux-gnu/slurm-wlm/accounting_storage_slurmdbd.so",
    "slurm-wlm-mysql-plugin": "/usr/lib/*-linux-gnu/slurm-wlm/accounting_storage_mysql.so",
    "munge": "/usr/sbin/munged",
    "mariadb-server-core": "/usr/sbin/mariadbd",
    "mariadb-client-core": "/usr/bin/mariadb",
    "libpmix-dev": "/usr/lib/*-linux-gnu/libpmix.so",  # Slurm's PMIx plugin opens it by this name
    "openmpi-bin": "/usr/bin/mpirun",
}


def missing_packages() -> list[str]:
    return [name for name, file in PACKAGES.items() if not list(Path("/").glob(file.lstrip("/")))]
