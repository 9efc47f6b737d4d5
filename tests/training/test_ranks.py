import pytest

from geomano_hpc.errors import GeomanoError
from geomano_hpc.training.ranks import Ranks, read_ranks

MASTER = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Ranks(0, 1, 0)),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", **MASTER}, Ranks(3, 4, 1)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", **MASTER}, Ranks(1, 2, 0)),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}, Ranks(0, 1, 0)),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1", **MASTER},
            Ranks(1, 2, 1),
        ),
    ],
)
def test_ranks_are_read_from_each_launcher(environment: dict[str, str], expected: Ranks) -> None:
    assert read_ranks(environment) == expected


def test_several_processes_that_cannot_find_each_other_are_an_error() -> None:
    environment = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    with pytest.raises(GeomanoError, match="srun started 2 processes but MASTER_ADDR"):
        read_ranks(environment)
