"""All ranks of a training, from joining to the end that they wait for together."""

import contextlib
import logging
import os
from collections.abc import Iterator

from geomano_hpc.launchers import NAMES_OF_TORCHRUN
from geomano_hpc.training.distributed.ranks import Ranks, read_ranks
from geomano_hpc.training.distributed.watch import RankWatch, watching
from geomano_hpc.training.distributed.world import join, wait_for_all


@contextlib.contextmanager
def ranks_together(timeout: float) -> Iterator[tuple[Ranks, RankWatch]]:
    """Join the ranks that the launcher announces and watch them; `timeout` as training.rank_timeout says."""
    ranks = read_ranks(os.environ)
    with _environment_as_before():
        join(ranks)
        if not ranks.is_main:
            logging.getLogger("geomano_hpc").setLevel(logging.WARNING)
        with watching(ranks, timeout) as watch:
            yield ranks, watch
            watch.unhurried()
            wait_for_all(ranks)  # rank 0 writes the result; the store of the ranks may live in its process


@contextlib.contextmanager
def _environment_as_before() -> Iterator[None]:
    """What DeepSpeed has to read of the ranks does not stay for what this process starts later, such as mpirun."""
    before = {name: os.environ.get(name) for name in NAMES_OF_TORCHRUN}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
