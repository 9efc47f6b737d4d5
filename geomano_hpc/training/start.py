"""What comes before the first step: rank 0 holds the folder, keeps the recipe, makes missing data; the others wait."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from geomano_hpc.config import Recipe
from geomano_hpc.data import ensure_store
from geomano_hpc.errors import DataError
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.distributed.world import fail_everywhere, tell_all
from geomano_hpc.training.engines.engine import pick_device
from geomano_hpc.training.losses import try_out_loss
from geomano_hpc.training.records.environment import describe_environment
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.setup import Setup, check_parts, scan_backend
from geomano_hpc.training.shapes import data_shape

logger = logging.getLogger(__name__)


def prepare(recipe: Recipe, folder: RunFolder, ranks: Ranks, held: contextlib.ExitStack) -> dict[str, Any] | None:
    """Returns the result of a run that is finished already. What fails on rank 0 is raised on every rank."""
    failure: Exception | None = None
    finished = None
    if ranks.is_main:
        try:
            check_parts(recipe)
            _try_out(recipe, ranks)
            held.enter_context(folder.held())
            folder.write_recipe(recipe)
            held.enter_context(_log_file(folder))
            finished = folder.result()
            if finished is None:
                scan_backend(recipe, ranks)
                ensure_store(recipe.data)
        except Exception as error:
            failure = error
    failure, finished = tell_all((failure, finished), ranks)
    if failure is not None:
        fail_everywhere(failure, ranks)
    return finished


def _try_out(recipe: Recipe, ranks: Ranks) -> None:
    """A model or a loss of the user's is asked for a sample before anything is written or any data is made."""
    try:
        height, width, in_channels, out_channels = data_shape(recipe)
    except DataError:
        return  # there is no data, or it is broken, which is said where it is opened
    device, grid = pick_device(ranks), (height, width)
    recipe.model.check_grid(grid)
    recipe.model.try_out(in_channels, out_channels, grid, device, recipe, ranks.world_size)
    try_out_loss(recipe.loss, height, width, out_channels)


def record_start(setup: Setup, folder: RunFolder) -> None:
    """environment.json lists every start of the run. The data must not change between them."""
    starts, data_hash = folder.starts(), setup.store.content_hash()
    if starts and starts[-1]["data_hash"] != data_hash:
        raise DataError(
            f"{setup.recipe.data.store}: the data changed since {folder.path} was started; "
            "train in a new run folder, or bring the old data back"
        )
    environment = describe_environment(setup.ranks, setup.backend, data_hash)
    folder.add_start({**environment, "data_loading": setup.data_loading})


@contextlib.contextmanager
def _log_file(folder: RunFolder) -> Iterator[None]:
    """What the package logs goes to the run's own log too, and so does the error that ends the run."""
    folder.log_file.parent.mkdir(exist_ok=True)
    handler = logging.FileHandler(folder.log_file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    package_logger = logging.getLogger("geomano_hpc")
    package_logger.addHandler(handler)
    package_logger.setLevel(logging.INFO)
    try:
        yield
    except Exception as error:
        line = logger.makeRecord(logger.name, logging.ERROR, __file__, 0, f"{type(error).__name__}: {error}", (), None)
        handler.handle(line)  # to the file only: the caller reports the error
        raise
    finally:
        package_logger.removeHandler(handler)
        handler.close()
