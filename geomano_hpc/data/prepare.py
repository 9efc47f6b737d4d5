"""Make sure that the store of a recipe is there: a recipe may say how its data is made."""

import contextlib
import fcntl
import logging
from collections.abc import Iterator
from pathlib import Path

from geomano_hpc.config import DataConfig
from geomano_hpc.data_prep.convert import convert
from geomano_hpc.data_prep.generate import Generation, generate
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.errors import DataError

logger = logging.getLogger(__name__)


def ensure_store(config: DataConfig) -> None:
    """Generate and convert the data where the store is missing and the recipe says how."""
    if config.store.is_dir():
        return
    how = config.generate
    if how is None:
        raise DataError(
            f"{config.store}: no such store; convert your raw file with `geomano data convert RAW --problem ... "
            f"--out {config.store}`, or make the data with `geomano data generate` first"
        )
    with _one_process_at_a_time(config.store):
        if config.store.is_dir():
            return
        logger.info("store %s is missing: making it as the recipe says", config.store)
        raw = config.store.with_suffix(".h5")
        samples = how.train_samples + how.test_samples
        generate(Generation(how.problem, samples, how.grid, how.seed, how.viscosity), raw)
        sizes = {"train_samples": how.train_samples, "test_samples": how.test_samples}
        convert([raw], problem(how.problem, stride=how.stride, **sizes), config.store)


@contextlib.contextmanager
def _one_process_at_a_time(store: Path) -> Iterator[None]:
    store.parent.mkdir(parents=True, exist_ok=True)
    with store.with_name(f".{store.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
