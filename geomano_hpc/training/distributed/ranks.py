"""Which rank this process is, and where the ranks meet: read from whatever launched it."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from geomano_hpc.errors import GeomanoError


@dataclass(frozen=True)
class Ranks:
    rank: int
    world_size: int
    local_rank: int
    launcher: str = ""

    @property
    def is_main(self) -> bool:
        return self.rank == 0


# Rank, world size, local rank as each launcher names them. The first that is complete counts: torchrun may run inside a
# job of Slurm, and mpirun too. submitit's jobs on Slurm are started by srun; its local ones have names of their own.
_LAUNCHERS = {
    "torchrun or deepspeed": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "mpirun (Open MPI)": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpirun (Hydra)": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "submitit (local)": ("SUBMITIT_LOCAL_GLOBALRANK", "SUBMITIT_LOCAL_NTASKS", "SUBMITIT_LOCAL_LOCALID"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}


def read_ranks(environment: Mapping[str, str]) -> Ranks:
    """The ranks that the launcher announces; one process where there is no launcher."""
    for launcher, names in _LAUNCHERS.items():
        if not all(environment.get(name, "").isdigit() for name in names):
            continue
        rank, world_size, local_rank = (int(environment[name]) for name in names)
        if not 0 <= rank < world_size:
            raise GeomanoError(f"{launcher}: {names[0]}={rank} is not below {names[1]}={world_size}; start it again")
        if launcher.startswith("mpirun"):
            _check_against_slurm(launcher, names[1], world_size, environment)
        return Ranks(rank, world_size, local_rank, launcher)
    return Ranks(0, 1, 0)


def _check_against_slurm(launcher: str, name: str, world_size: int, environment: Mapping[str, str]) -> None:
    """srun with another MPI than the program's gives many worlds of one rank, each of which would train on its own."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "")
    in_a_step = environment.get("SLURM_STEP_ID", "").isdigit() and "SLURM_PROCID" in environment
    if in_a_step and tasks.isdigit() and world_size == 1 < int(tasks):
        raise GeomanoError(
            f"{launcher} announces {name}={world_size}, but Slurm started {tasks} tasks (SLURM_NTASKS): the MPI "
            "library and the launcher do not match; try srun --mpi=pmix, or plain srun, which needs no MPI"
        )


def meeting_point(ranks: Ranks, environment: Mapping[str, str]) -> tuple[str, int]:
    """Address and port where the ranks find each other: what the launcher says, or what all of them can work out."""
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT", "")
    if address and port.isdigit():
        return address, int(port)
    if ranks.launcher == "srun":
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
        if nodes:
            step = environment.get("SLURM_STEP_ID", "0")
            number = int(environment.get("SLURM_JOB_ID", "0")) * 7 + (int(step) if step.isdigit() else 0)
            return address or first_host(nodes), int(port) if port.isdigit() else 20_000 + number % 20_000
    if ranks.launcher.startswith("mpirun"):
        return _agreed_over_mpi(ranks)
    raise GeomanoError(
        f"{ranks.launcher} started {ranks.world_size} processes but MASTER_ADDR and MASTER_PORT are not set; "
        "export them, or start the processes with torchrun"
    )


def first_host(nodes: str) -> str:
    """The first of Slurm's compressed list of hosts: node[03-07,11],gpu1 -> node03."""
    head = re.match(r"([^,\[]*)(?:\[([^\]]*)\])?([^,\[]*)", nodes)
    assert head is not None
    prefix, numbers, suffix = head.groups()
    first = re.split(r"[,-]", numbers)[0] if numbers else ""
    return f"{prefix}{first}{suffix}"


def _agreed_over_mpi(ranks: Ranks) -> tuple[str, int]:
    """Rank 0 takes a free port and tells the others over MPI, the one thing that mpirun gives its processes."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.size != ranks.world_size:
        raise GeomanoError(
            f"{ranks.launcher} started {ranks.world_size} processes but MPI sees {world.size}: mpi4py uses another MPI "
            "library than the launcher; start the processes with torchrun, or export MASTER_ADDR and MASTER_PORT"
        )
    meeting = None
    if world.rank == 0:
        one_node = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", os.environ.get("MPI_LOCALNRANKS", "0")))
        host = "127.0.0.1" if one_node == ranks.world_size else socket.gethostname()
        with socket.socket() as free:
            free.bind(("", 0))
            meeting = (host, free.getsockname()[1])
    address, port = world.bcast(meeting, root=0)
    return str(address), int(port)
