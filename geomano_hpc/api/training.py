"""`train`: one run from its recipe to its result, as `geomano train` does it, which calls this."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from geomano_hpc.api.result import Result
from geomano_hpc.config import Recipe, load_recipe
from geomano_hpc.launch.study import run_name
from geomano_hpc.training import loop
from geomano_hpc.training.callbacks import Callback
from geomano_hpc.training.records.run_folder import RunFolder


def train(
    recipe: str | Path | Recipe,
    changes: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    runs: str | Path = "runs",
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Train one run. Called again, it goes on from its newest checkpoint; a finished run is not repeated.

    Nothing is printed to standard output: the log goes to the run folder, and to Python's logger `geomano_hpc`.

    Args:
        recipe: the name of a shipped recipe, a YAML file, or a Recipe
        changes: keys of the recipe with other values, such as {"training.epochs": 2}
        out: the run folder; by default RUNS/RECIPE/seed-S_HASH
        runs: where run folders go, if `out` is not given
        callbacks: your code after each step, epoch and checkpoint and at the end, on rank 0

    Returns:
        the errors on the test split, and the run folder

    Raises:
        ConfigError: a recipe, key or value that is not valid, or a folder that holds another run
        DataError: no such store, or one that changed since the run was started
        FolderInUseError: another process trains in the folder
        PreemptedError: SIGTERM or SIGUSR2 asked to stop; everything is saved

    Examples:
        >>> import geomano_hpc as gm
        >>> small = {"model.depth": 1, "model.embedding": 8, "data.train_samples": 8, "data.test_samples": 4}
        >>> result = gm.train("darcy_smoke", {**small, "training.epochs": 1}, out="runs/try")
        >>> result.epochs, result.folder
        (1, PosixPath('runs/try'))
        >>> u = gm.load(result.folder).predict(gm.open_dataset("data/darcy_smoke.zarr", split="test")[0][0])
    """
    resolved = load_recipe(recipe, changes or {})
    folder = RunFolder(run_folder(resolved, out, runs))
    record = loop.train(resolved, folder, callbacks) or folder.result()  # only rank 0 has it from the loop
    assert record is not None
    return Result.from_record(folder.path, record)


def run_folder(recipe: Recipe, out: str | Path | None, runs: str | Path) -> Path:
    """Where the run goes."""
    return Path(out) if out is not None else Path(runs) / recipe.name / run_name({}, recipe)
