"""What comes before the first step: rank 0 holds the folder, keeps the recipe, makes missing data; the others wait."""

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

from geomano_hpc.atomic import write_json
from geomano_hpc.config import GeomanoConfig, Recipe
from geomano_hpc.data import ensure_store
from geomano_hpc.errors import DataError
from geomano_hpc.kernels import BackendStatus, ready_backend
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.distributed.world import fail_everywhere, tell_all
from geomano_hpc.training.records.run_folder import RunFolder

logger = logging.getLogger(__name__)


def prepare(recipe: Recipe, folder: RunFolder, ranks: Ranks, held: contextlib.ExitStack) -> dict[str, Any] | None:
    """Returns the result of a run that is finished already. What fails on rank 0 is raised on every rank."""
    failure: Exception | None = None
    finished = None
    if ranks.is_main:
        try:
            held.enter_context(folder.held())
            folder.write_recipe(recipe)
            held.enter_context(_log_file(folder))
            finished = folder.result()
            if finished is None:
                scan_backend(recipe)
                ensure_store(recipe.data)
        except Exception as error:
            failure = error
    failure, finished = tell_all((failure, finished), ranks)
    if failure is not None:
        fail_everywhere(failure, ranks)
    return finished


def scan_backend(recipe: Recipe) -> BackendStatus | None:
    """The backend of the scan, compiled and loaded; None for a model without a scan."""
    return ready_backend(recipe.model.scan_backend) if isinstance(recipe.model, GeomanoConfig) else None


def record_start(recipe: Recipe, folder: RunFolder, environment: dict[str, Any]) -> None:
    """environment.json lists every start of the run. The data must not change between them."""
    file = folder.environment_file
    starts = json.loads(file.read_text(encoding="utf-8"))["starts"] if file.is_file() else []
    if starts and starts[-1]["data_hash"] != environment["data_hash"]:
        raise DataError(
            f"{recipe.data.store}: the data changed since {folder.path} was started; "
            "train in a new run folder, or bring the old data back"
        )
    write_json(file, {"starts": [*starts, environment]})


@contextlib.contextmanager
def _log_file(folder: RunFolder) -> Iterator[None]:
    """What the package logs goes to logs/train.log too, and so does the error that ends the run."""
    folder.logs.mkdir(exist_ok=True)
    handler = logging.FileHandler(folder.logs / "train.log", encoding="utf-8")
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
