"""What launchers (torchrun, deepspeed, mpirun, srun, submitit) tell the processes that they start, in variables of the
environment. The other modules ask here and know none of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from geomano_hpc.errors import GeomanoError

Environment = Mapping[str, str]


@dataclass(frozen=True)
class Ranks:
    """Which of the processes of one program this is."""

    rank: int
    world_size: int
    local_rank: int
    launcher: str = ""

    @property
    def is_main(self) -> bool:
        return self.rank == 0


NAMES_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
# Rank, world size, local rank as each launcher names them. The first that is complete counts: torchrun may run inside a
# job of Slurm, and mpirun too. submitit's jobs on Slurm are started by srun; its local ones have names of their own.
_LAUNCHERS = {
    "torchrun or deepspeed": NAMES_OF_TORCHRUN,
    "mpirun (Open MPI)": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpirun (Hydra)": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "submitit (local)": ("SUBMITIT_LOCAL_GLOBALRANK", "SUBMITIT_LOCAL_NTASKS", "SUBMITIT_LOCAL_LOCALID"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}
_MPIRUN = ("mpirun (Open MPI)", "mpirun (Hydra)")


def read_ranks(environment: Environment) -> Ranks:
    """The ranks that the launcher announces; one process where there is no launcher."""
    ranks = _announced(environment)
    if not ranks.launcher:
        _check_alone(environment)
        return ranks
    rank, size, _ = _LAUNCHERS[ranks.launcher]
    if not 0 <= ranks.rank < ranks.world_size:
        raise GeomanoError(
            f"{ranks.launcher}: {rank}={ranks.rank} is not below {size}={ranks.world_size}; start it again"
        )
    if ranks.launcher in _MPIRUN:
        _check_against_slurm(ranks.launcher, size, ranks.world_size, environment)
    return ranks


def _check_alone(environment: Environment) -> None:
    """Half of what torchrun says, as in a script of one's own: each process would train on its own."""
    names = NAMES_OF_TORCHRUN
    given = {name: environment[name] for name in names if name in environment}
    if {"RANK", "WORLD_SIZE"} <= given.keys() and given["WORLD_SIZE"] != "1":
        found = ", ".join(f"{name}={given.get(name, '(not set)')}" for name in names)
        raise GeomanoError(f"{found}: several processes need all three, as whole numbers; start them with torchrun")


def speaks_for_all(environment: Environment) -> bool:
    """Whether this is the first rank, or alone. Never an error: it is asked while a process ends."""
    return _announced(environment).is_main


def _announced(environment: Environment) -> Ranks:
    for launcher, names in _LAUNCHERS.items():
        if all(environment.get(name, "").isdigit() for name in names):
            rank, world_size, local_rank = (int(environment[name]) for name in names)
            return Ranks(rank, world_size, local_rank, launcher)
    return Ranks(0, 1, 0)


def _check_against_slurm(launcher: str, name: str, world_size: int, environment: Environment) -> None:
    """srun with another MPI than the program's gives many worlds of one rank, each of which would train on its own."""
    _, tasks = tasks_of_step(environment)
    in_a_step = environment.get("SLURM_STEP_ID", "").isdigit() and "SLURM_PROCID" in environment
    if in_a_step and world_size == 1 < tasks:
        raise GeomanoError(
            f"{launcher} announces {name}={world_size}, but Slurm started {tasks} tasks (SLURM_NTASKS): the MPI "
            "library and the launcher do not match; try srun --mpi=pmix, or plain srun, which needs no MPI"
        )


def mpi_world_size(environment: Environment) -> tuple[str, int]:
    """How many processes of an MPI program were started, and the variable that says so: ("", 1) where none does.

    The first that is there counts: Open MPI started inside a job of Slurm finds both.
    """
    for launcher in _MPIRUN:
        name = _LAUNCHERS[launcher][1]
        if environment.get(name, "").isdigit():
            return name, int(environment[name])
    return tasks_of_step(environment)


def mpi_ranks_here(environment: Environment) -> int:
    """Ranks on this node, where mpirun says so; else 0."""
    return int(environment.get("OMPI_COMM_WORLD_LOCAL_SIZE", environment.get("MPI_LOCALNRANKS", "0")))


def tasks_of_step(environment: Environment) -> tuple[str, int]:
    """How many tasks srun has started together, and the variable that says so; ("", 1) outside of a step of Slurm.

    SLURM_NTASKS is also set in the batch script itself, which is one process.
    """
    for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"):
        in_a_step = name != "SLURM_NTASKS" or "SLURM_STEP_ID" in environment
        if environment.get(name, "").isdigit() and in_a_step:
            return name, int(environment[name])
    return "", 1


def task_of_slurm(environment: Environment) -> int:
    return int(environment.get("SLURM_PROCID", "0"))


def gpus_granted(environment: Environment) -> tuple[str, int] | None:
    """How many GPUs of this node Slurm gave to the job, and the variable that says so."""
    name = "SLURM_GPUS_ON_NODE"
    return (name, int(environment[name])) if environment.get(name, "").isdigit() else None


def own_job(environment: Environment) -> str | None:
    """The job of Slurm that was submitted for this process; a local run inside of somebody's interactive job has none.

    Task t of an array a is a_t: one of its tasks has the number of the array as its own, and would stand for all.
    """
    if environment.get("SUBMITIT_EXECUTOR") == "local":
        return None
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID")


def restarts_of_job(environment: Environment) -> str:
    return environment.get("SLURM_RESTART_COUNT", "0")


def announced_meeting_point(ranks: Ranks, environment: Environment) -> tuple[str, int] | None:
    """Address and port where the ranks find each other, as the launcher says or as each of them can work out."""
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT", "")
    if address and port.isdigit():
        return address, int(port)
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    if ranks.launcher != "srun" or not nodes:
        return None
    step = environment.get("SLURM_STEP_ID", "0")
    number = int(environment.get("SLURM_JOB_ID", "0")) * 7 + (int(step) if step.isdigit() else 0)
    return address or first_host(nodes), int(port) if port.isdigit() else 20_000 + number % 20_000


def first_host(nodes: str) -> str:
    """The first of Slurm's compressed list of hosts: node[03-07,11],gpu1 -> node03."""
    head = re.match(r"([^,\[]*)(?:\[([^\]]*)\])?([^,\[]*)", nodes)
    assert head is not None
    prefix, numbers, suffix = head.groups()
    first = re.split(r"[,-]", numbers)[0] if numbers else ""
    return f"{prefix}{first}{suffix}"


def as_torchrun(ranks: Ranks) -> dict[str, str]:
    """The same in torchrun's names, which DeepSpeed reads too."""
    return {"RANK": str(ranks.rank), "WORLD_SIZE": str(ranks.world_size), "LOCAL_RANK": str(ranks.local_rank)}


def meeting_at(address: str, port: int) -> dict[str, str]:
    return {"MASTER_ADDR": address, **meeting_port(port)}


def meeting_port(port: int) -> dict[str, str]:
    return {"MASTER_PORT": str(port)}
