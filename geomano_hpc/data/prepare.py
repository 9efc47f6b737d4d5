"""Make sure that the store of a recipe is there: a recipe may say how its data is made."""

import difflib
import logging
from pathlib import Path

from geomano_hpc.config import DataConfig
from geomano_hpc.config.tree import GenerateConfig
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.generate import Generation, generate
from geomano_hpc.data_prep.problems import Problem, problem
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import DataError
from geomano_hpc.locks import one_at_a_time

logger = logging.getLogger(__name__)


def require_store(config: DataConfig) -> None:
    """Refuse, before anything is written, what `ensure_store` would refuse."""
    if config.generate is None and not config.store.is_dir():
        raise DataError(
            f"{config.store}: no such store{_closest_store(config.store)}; convert your raw file with `geomano data "
            f"convert RAW --problem ... --out {config.store}`, or make the data with `geomano data generate` first"
        )
    if config.generate is not None and config.store.is_dir():
        _check_made_as_wanted(config.store, *_wanted(config.generate))


def _closest_store(missing: Path) -> str:
    """In the folder where it was looked for, and in data/."""
    folders = {missing.parent, Path("data")}
    found = sorted(
        path for folder in folders if folder.is_dir() for path in folder.iterdir() if (path / "zarr.json").is_file()
    )
    names = {path.name: path for path in found}
    close = difflib.get_close_matches(missing.name, list(names), n=1, cutoff=0.4)
    if close:
        return f"; did you mean {names[close[0]]}?"
    return f"; there are {', '.join(map(str, found[:5]))}" if found else ""


def ensure_store(config: DataConfig) -> None:
    """Make the data where the store is missing and the recipe says how; a store with other data is an error."""
    require_store(config)
    if config.generate is None:
        return
    generation, settings = _wanted(config.generate)
    with one_at_a_time(config.store.with_name(f".{config.store.name}.lock")):
        if config.store.is_dir():
            _check_made_as_wanted(config.store, generation, settings)
            return
        logger.info("store %s is missing: making it as the recipe says", config.store)
        raw = config.store.with_suffix(".h5")
        generate(generation, raw)
        convert([raw], settings, config.store)


def _wanted(how: GenerateConfig) -> tuple[Generation, Problem]:
    samples = how.train_samples + how.test_samples
    generation = Generation(how.problem, samples, how.grid, how.seed, how.viscosity)
    sizes = {"train_samples": how.train_samples, "test_samples": how.test_samples}
    return generation, problem(how.problem, stride=how.stride, **sizes)


def _check_made_as_wanted(store: Path, generation: Generation, settings: Problem) -> None:
    origin = open_store(store).card.provenance
    found = ([source["generation"] for source in origin["sources"]], origin["stride"], origin["samples"])
    samples = {"train": settings.splits.train, "test": settings.splits.test}
    if found != ([generation.parameters()], settings.stride, samples):
        raise DataError(
            f"{store} holds other data than data.generate says; remove it, name another data.store, "
            "or set data.generate=null to take it as it is"
        )
