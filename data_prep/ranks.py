"""The ranks of a data-preparation job: one process, or MPI where a launcher started several."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, Protocol

from geomano_hpc.errors import GeomanoError

# What each launcher tells its processes of their number.
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


class Communicator(Protocol):
    rank: int
    size: int

    def bcast(self, value: Any, root: int = 0) -> Any: ...
    def allgather(self, value: Any) -> list[Any]: ...
    def Abort(self, errorcode: int = 0) -> Any: ...  # noqa: N802 (MPI's name)


class SingleProcess:
    rank = 0
    size = 1

    def bcast(self, value: Any, root: int = 0) -> Any:
        return value

    def allgather(self, value: Any) -> list[Any]:
        return [value]

    def Abort(self, errorcode: int = 0) -> Any:  # noqa: N802
        sys.exit(errorcode)


def communicator() -> Communicator:
    """MPI's world, checked against the launcher: the wrong MPI plugin gives many worlds of size 1 and no error."""
    announced = {name: int(os.environ[name]) for name in _SIZE_VARIABLES if os.environ.get(name, "").isdigit()}
    expected = max(announced.values(), default=1)
    if expected == 1:
        return SingleProcess()
    from mpi4py import MPI

    world: Communicator = MPI.COMM_WORLD
    if world.size != expected:
        raise GeomanoError(
            f"the launcher started {expected} processes ({', '.join(announced)}) but MPI sees {world.size}: "
            "the MPI library and the launcher do not match; try srun --mpi=pmix or mpirun"
        )
    return world


@contextlib.contextmanager
def abort_all(world: Communicator) -> Iterator[None]:
    """An error on one of several ranks ends them all, where the others would wait for it forever."""
    try:
        yield
    except Exception as error:
        if world.size == 1:
            raise
        print(f"error: rank {world.rank} of {world.size}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        world.Abort(1)
        raise
