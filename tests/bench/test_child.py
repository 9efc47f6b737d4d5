"""Work in a process of its own: its answer, its environment, its ranks, and its failure in one line."""

import os
import shutil
import sys
from typing import Any

import pytest

from geomano_hpc.bench.child import mpi, run_in_child
from geomano_hpc.errors import GeomanoError


def seen(number: int, names: list[str]) -> dict[str, Any]:
    print("what others print is not the answer")
    return {"pid": os.getpid(), "twice": 2 * number, "variables": {name: os.environ.get(name) for name in names}}


def first_of_two() -> int | None:
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.size) if MPI.COMM_WORLD.rank == 0 else None


def failing() -> None:
    raise ValueError("no such grid")


@pytest.fixture(autouse=True)
def _found_by_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


@pytest.fixture
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This module under the name by which another process can import it."""
    for function in (seen, first_of_two, failing):
        monkeypatch.setattr(function, "__module__", "test_child")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(request.path.parent), os.environ["PYTHONPATH"]]))


@pytest.mark.usefixtures("here")
def test_answer_comes_from_another_process_with_changed_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEFT_OUT", "1")
    found = run_in_child(seen, 21, ["GIVEN", "LEFT_OUT"], environment={"GIVEN": "yes", "LEFT_OUT": None})
    assert found["pid"] != os.getpid()
    assert found["twice"] == 42
    assert found["variables"] == {"GIVEN": "yes", "LEFT_OUT": None}


@pytest.mark.usefixtures("here")
@pytest.mark.ranks
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
def test_one_of_the_ranks_answers() -> None:
    launcher, environment = mpi(2)
    assert run_in_child(first_of_two, launcher=launcher, environment=environment) == 2


@pytest.mark.usefixtures("here")
def test_failure_is_told_in_one_line() -> None:
    with pytest.raises(GeomanoError, match=r"^test_child\.failing failed: ValueError: no such grid$"):
        run_in_child(failing)
