"""The ranks of a data-preparation job: one process, or MPI where a launcher started several."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from geomano_hpc.errors import GeomanoError
from geomano_hpc.launchers import mpi_world_size

Result = TypeVar("Result")


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


class SharedError(GeomanoError):
    """An error of one rank that every rank knows of, so that each can end by itself."""


def communicator() -> Communicator:
    """MPI's world, checked against the launcher: the wrong MPI plugin gives many worlds of size 1 and no error."""
    announced, expected = mpi_world_size(os.environ)
    if expected == 1:
        return SingleProcess()
    from mpi4py import MPI

    world: Communicator = MPI.COMM_WORLD
    if world.size != expected:
        raise GeomanoError(
            f"the launcher started {expected} processes ({announced}) but MPI sees {world.size}: "
            "the MPI library and the launcher do not match; try srun --mpi=pmix or mpirun"
        )
    return world


def together(world: Communicator, work: Callable[[], Result]) -> list[Result]:
    """Do a part of the work on every rank and return the results of all. An error of one rank is raised on all."""
    result, error = None, None
    try:
        result = work()
    except Exception as caught:
        if world.size == 1:
            raise
        text = " ".join(str(caught).split())
        error = text if isinstance(caught, GeomanoError) else f"rank {world.rank}: {type(caught).__name__}: {text}"
    gathered = world.allgather((result, error))
    errors = [text for _, text in gathered if text is not None]
    if errors:
        raise SharedError(errors[0])
    return [one for one, _ in gathered]


@contextlib.contextmanager
def abort_all(world: Communicator) -> Iterator[None]:
    """An error on one of several ranks ends them all, where the others would wait for it forever."""
    try:
        yield
    except SharedError:
        if world.rank == 0:
            raise
        sys.exit(1)  # rank 0 says what is wrong
    except Exception as error:
        if world.size == 1:
            raise
        print(f"error: rank {world.rank} of {world.size}: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        world.Abort(1)
        raise
