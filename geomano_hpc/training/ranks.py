"""Which rank this process is: read from whatever launched it, and join the others."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from geomano_hpc.errors import GeomanoError


@dataclass(frozen=True)
class Ranks:
    rank: int
    world_size: int
    local_rank: int

    @property
    def is_main(self) -> bool:
        return self.rank == 0


# rank, world size, local rank as each launcher names them
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}


def read_ranks(environment: Mapping[str, str]) -> Ranks:
    """The ranks that the launcher announces; one process where there is no launcher."""
    for launcher, names in _LAUNCHERS.items():
        if not all(environment.get(name, "").isdigit() for name in names):
            continue
        rank, world_size, local_rank = (int(environment[name]) for name in names)
        if world_size > 1 and not {"MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
            raise GeomanoError(
                f"{launcher} started {world_size} processes but MASTER_ADDR and MASTER_PORT are not set; "
                "export them, or start the processes with torchrun"
            )
        return Ranks(rank, world_size, local_rank)
    return Ranks(0, 1, 0)


def join(ranks: Ranks) -> None:
    """Initialise torch.distributed. A single process needs no port and no network."""
    import torch
    import torch.distributed as dist

    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"

    # DeepSpeed reads these too.
    os.environ.update(RANK=str(ranks.rank), WORLD_SIZE=str(ranks.world_size), LOCAL_RANK=str(ranks.local_rank))
    if dist.is_initialized():
        return
    if ranks.world_size == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group(backend, rank=ranks.rank, world_size=ranks.world_size)


def fail_everywhere(error: Exception, ranks: Ranks) -> NoReturn:
    """Every rank met the same error: rank 0 reports it, the others end without a word."""
    if ranks.is_main:
        raise error
    sys.exit(1)


def tell_all(value: Any, ranks: Ranks) -> Any:
    """What rank 0 has, on every rank."""
    if ranks.world_size == 1:
        return value
    import torch.distributed as dist

    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
