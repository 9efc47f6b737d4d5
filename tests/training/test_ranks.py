"""Which rank a process is, from the variables of each launcher."""

import re
from pathlib import Path

import pytest

import geomano_hpc
from geomano_hpc.errors import GeomanoError
from geomano_hpc.launchers import Ranks, first_host, read_ranks, speaks_for_all
from geomano_hpc.training.distributed.ranks import meeting_point
from geomano_hpc.training.distributed.world import fair_share

MASTER = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}
LOCAL_SUBMITIT = {
    "SUBMITIT_EXECUTOR": "local",
    "SUBMITIT_LOCAL_GLOBALRANK": "1",
    "SUBMITIT_LOCAL_NTASKS": "2",
    "SUBMITIT_LOCAL_LOCALID": "1",
}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", **MASTER}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Ranks(0, 1, 0)),
        (TORCHRUN, Ranks(3, 4, 1, "torchrun or deepspeed")),
        ({**TORCHRUN, "CROSS_RANK": "0", "LOCAL_SIZE": "4"}, Ranks(3, 4, 1, "torchrun or deepspeed")),
        (SRUN, Ranks(1, 2, 0, "srun")),
        ({**SRUN, "SUBMITIT_EXECUTOR": "slurm", "SLURM_NTASKS": "2"}, Ranks(1, 2, 0, "srun")),
        (LOCAL_SUBMITIT, Ranks(1, 2, 1, "submitit (local)")),
        (OPEN_MPI, Ranks(1, 2, 1, "mpirun (Open MPI)")),
        (HYDRA, Ranks(2, 4, 0, "mpirun (Hydra)")),
        # In the batch script itself Slurm tells of tasks that are not started yet: it is one process.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}, Ranks(0, 1, 0)),
        # Launchers inside an allocation of Slurm count before srun, which only started their helpers.
        ({**SRUN, **TORCHRUN}, Ranks(3, 4, 1, "torchrun or deepspeed")),
        ({**SRUN, **OPEN_MPI}, Ranks(1, 2, 1, "mpirun (Open MPI)")),
    ],
)
def test_ranks_are_read_from_each_launcher(environment: dict[str, str], expected: Ranks) -> None:
    assert read_ranks(environment) == expected


def test_mpi_worlds_of_one_rank_in_a_step_of_several_tasks_are_an_error() -> None:
    alone = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    with pytest.raises(GeomanoError, match=r"OMPI_COMM_WORLD_SIZE=1, but Slurm started 2 tasks \(SLURM_NTASKS\)"):
        read_ranks({**SRUN, **alone})


def test_rank_that_is_no_rank_is_an_error() -> None:
    with pytest.raises(GeomanoError, match="RANK=4 is not below WORLD_SIZE=4"):
        read_ranks({**TORCHRUN, "RANK": "4"})


def test_half_of_what_torchrun_says_is_an_error_and_not_a_process_on_its_own() -> None:
    half = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_RANK"}
    with pytest.raises(
        GeomanoError, match=r"RANK=3, WORLD_SIZE=4, LOCAL_RANK=\(not set\): .* start them with torchrun"
    ):
        read_ranks(half)
    assert read_ranks({"RANK": "0", "WORLD_SIZE": "1"}) == Ranks(0, 1, 0)
    assert read_ranks({**half, **SRUN}) == Ranks(1, 2, 0, "srun")


def test_first_rank_speaks_for_all_whatever_else_is_wrong() -> None:
    assert speaks_for_all({})
    assert not speaks_for_all({**TORCHRUN, "RANK": "4"})
    assert speaks_for_all({**HYDRA, "PMI_RANK": "0"})


def test_no_other_module_reads_the_launchers_variables() -> None:
    root = Path(geomano_hpc.__file__).parents[1]
    names = r"(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_\w+|OMPI_COMM_\w+|PMI_\w+|SLURM_(?!CONF)\w+|SUBMITIT_\w+)"
    read = re.compile(rf"environ(ment)?(\.get\(|\.setdefault\(|\[)f?[\"']{names}[\"']")
    parts = ("geomano_hpc", "launch", "slurm", "data_prep")
    files = [file for part in parts for file in (root / part).rglob("*.py") if "testbed" not in file.parts]
    assert [file.name for file in files if read.search(file.read_text(encoding="utf-8"))] == ["launchers.py"]


def test_ranks_meet_where_the_launcher_says_or_on_the_first_node_of_the_job() -> None:
    assert meeting_point(read_ranks(TORCHRUN), TORCHRUN) == ("127.0.0.1", 29500)
    job = {**SRUN, "SLURM_JOB_ID": "41", "SLURM_STEP_NODELIST": "gpu[03-07,11],login"}
    address, port = meeting_point(read_ranks(job), job)
    assert (address, 20_000 <= port < 40_000) == ("gpu03", True)
    assert meeting_point(read_ranks(job), {**job, "SLURM_PROCID": "0"}) == (address, port)
    assert meeting_point(read_ranks(job), {**job, "SLURM_JOB_ID": "42"}) != (address, port)
    assert meeting_point(read_ranks(job), {**job, **MASTER}) == ("127.0.0.1", 29500)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("node1", "node1"), ("a1,b2", "a1"), ("n[1-3]", "n1"), ("n[007,9]-ib", "n007-ib"), ("r[1-2]c[3-4]", "r1")],
)
def test_first_host_of_a_compressed_list(nodes: str, first: str) -> None:
    assert first_host(nodes).startswith(first)


def test_several_processes_that_cannot_find_each_other_are_an_error() -> None:
    with pytest.raises(GeomanoError, match=r"submitit \(local\) started 2 processes but MASTER_ADDR"):
        meeting_point(read_ranks(LOCAL_SUBMITIT), LOCAL_SUBMITIT)


@pytest.mark.parametrize(
    ("mine", "of_all", "share"),
    [
        (range(8), [range(8), range(8)], 4),
        (range(2), [range(2), range(2), range(2)], 1),
        (range(4), [range(4), range(4, 8)], 4),  # bound by the launcher: nothing to divide
        (range(4), [range(4), range(2, 6)], 3),
    ],
)
def test_cores_are_divided_between_the_ranks_of_a_node(mine: range, of_all: list[range], share: int) -> None:
    assert fair_share(mine, of_all) == share
