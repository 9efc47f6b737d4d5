"""What benchmarks that train have in common: studies of several models, run here, and the errors of their seeds.

A study is one like any other: every model and seed has a run folder, and what is finished is not repeated.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from geomano_hpc.errors import ConfigError, DivergedError, GeomanoError
from geomano_hpc.launch import PlannedRun, Study
from geomano_hpc.launch.run import run_here
from geomano_hpc.training.records.run_folder import RunFolder


def refuse_models(changes: Iterable[str]) -> None:
    """Of the keys that are changed for all models."""
    for path in changes:
        if path.split(".")[0] == "model":
            raise ConfigError(f"{path}: the benchmark chooses the models; change training, loss or data")


def by_model(models: Iterable[str], runs: Sequence[PlannedRun]) -> dict[str, list[PlannedRun]]:
    """The plan of a study that varies the model has one model after the other, each with all its seeds."""
    names = list(models)
    seeds = len(runs) // len(names)
    return {name: list(runs[number * seeds : (number + 1) * seeds]) for number, name in enumerate(names)}


def train_here(study: Study, runs: Sequence[PlannedRun], folder: Path, at_once: int, may_diverge: bool = False) -> None:
    """Train what is missing. One that fails is an error, after the others have ended; `may_diverge`: except those
    whose loss was no number."""
    outcome = run_here(study, runs, folder, at_once)
    failed = {run: error for run, error in outcome.failed.items() if not (may_diverge and _says_diverged(error))}
    if failed:
        raise GeomanoError("; ".join(f"{run} failed: {error}" for run, error in failed.items()))


def divergence(folder: RunFolder) -> str | None:
    """Why the run could not be trained to its end, where its loss was no number."""
    error = folder.failure()
    return error if error is not None and _says_diverged(error) else None


def _says_diverged(error: str) -> bool:
    return error.startswith(f"{DivergedError.__name__}:")


def result_of(folder: RunFolder) -> dict[str, Any]:
    result = folder.result()
    if result is None:
        raise GeomanoError(
            f"not finished, perhaps since another process is at it: {folder.path}; start the benchmark again"
        )
    return result


def spread(errors: Sequence[float]) -> dict[str, Any]:
    """Errors of the seeds of a model, for a row of a record."""
    std = statistics.stdev(errors) if len(errors) > 1 else None
    return {"errors": list(errors), "mean": statistics.fmean(errors), "std": std}


def spread_in_words(row: Mapping[str, Any]) -> str:
    return f"{row['mean']:.5f}" + ("" if row["std"] is None else f" ± {row['std']:.5f}")
