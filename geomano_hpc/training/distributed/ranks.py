"""The ranks of a training: which of them this process is, and where they meet."""

import os
import socket
from collections.abc import Mapping

from geomano_hpc.errors import GeomanoError
from geomano_hpc.launchers import Ranks, announced_meeting_point, mpi_ranks_here, read_ranks

__all__ = ["Ranks", "meeting_point", "read_ranks"]


def meeting_point(ranks: Ranks, environment: Mapping[str, str]) -> tuple[str, int]:
    """Address and port where the ranks find each other: what the launcher says, or what all of them can work out."""
    announced = announced_meeting_point(ranks, environment)
    if announced is not None:
        return announced
    if ranks.launcher.startswith("mpirun"):
        return _agreed_over_mpi(ranks)
    raise GeomanoError(
        f"{ranks.launcher} started {ranks.world_size} processes but MASTER_ADDR and MASTER_PORT are not set; "
        "export them, or start the processes with torchrun"
    )


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
        host = "127.0.0.1" if mpi_ranks_here(os.environ) == ranks.world_size else socket.gethostname()
        with socket.socket() as free:
            free.bind(("", 0))
            meeting = (host, free.getsockname()[1])
    address, port = world.bcast(meeting, root=0)
    return str(address), int(port)
