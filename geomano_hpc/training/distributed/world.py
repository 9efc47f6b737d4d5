"""The ranks of a training together: joining, cores for each, and saying things to all."""

import os
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from geomano_hpc.data.node_memory import gather
from geomano_hpc.launchers import as_torchrun, meeting_at
from geomano_hpc.training.distributed.ranks import Ranks, meeting_point

# A rank may wait this long for rank 0 to make the data. Dead and stuck ranks are found by the watch, long before.
_PATIENCE = timedelta(days=1)


def join(ranks: Ranks) -> None:
    """Initialise torch.distributed, and share the cores. A single process needs no port and no network."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    os.environ.update(as_torchrun(ranks))
    if dist.is_initialized():
        return
    if ranks.world_size == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        return
    address, port = meeting_point(ranks, os.environ)
    os.environ.update(meeting_at(address, port))
    dist.init_process_group(backend, rank=ranks.rank, world_size=ranks.world_size, timeout=_PATIENCE)
    share_cores()


def share_cores() -> None:
    """Divide the cores of a node between its ranks, unless OMP_NUM_THREADS says how many threads each takes."""
    cores = sorted(os.sched_getaffinity(0))
    found = gather((os.uname().nodename, cores))
    if "OMP_NUM_THREADS" not in os.environ:
        node = os.uname().nodename
        torch.set_num_threads(fair_share(cores, [others for name, others in found if name == node]))


def fair_share(mine: Sequence[int], of_all: Sequence[Sequence[int]]) -> int:
    """How many cores are mine, if each core is divided between those who may use it. Bound ranks share with nobody."""
    users = Counter(core for cores in of_all for core in cores)
    return max(1, int(sum(1 / users[core] for core in mine) + 1e-9))


def tell_all(value: Any, ranks: Ranks) -> Any:
    """What rank 0 has, on every rank."""
    if ranks.world_size == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def fail_everywhere(error: Exception, ranks: Ranks) -> NoReturn:
    """Every rank met the same error: rank 0 reports it, the others end without a word."""
    if ranks.is_main:
        raise error
    sys.exit(getattr(error, "exit_code", 1))


def wait_for_all(ranks: Ranks) -> None:
    if ranks.world_size > 1:
        dist.barrier()
