"""The learning rate of each model, all chosen alike: by the error on samples held out of the training split.

Each model is trained once at each rate of a grid. Where the best rate lies at an edge of its grid, the grid is widened
there, until no best does; a training whose loss is no number is worst. The trainings see a store without the test
samples. They are a study like any other: killed and started again, the search goes on, and what is finished is not
repeated.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from geomano_hpc.bench.trainings import divergence, result_of, train_here
from geomano_hpc.config import DataConfig
from geomano_hpc.data import ensure_store
from geomano_hpc.data.fields import samples_of
from geomano_hpc.data_prep.store import Store, open_store
from geomano_hpc.data_prep.subset import subset
from geomano_hpc.errors import DataError, GeomanoError
from geomano_hpc.launch import Study, plan
from geomano_hpc.training.records.run_folder import RunFolder

logger = logging.getLogger(__name__)

RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SEED = 0
HELD_OUT = 5  # the last n-th part of the training samples, where the store has no validation split
_LEAST, _MOST = 1e-7, 1e3


@dataclass(frozen=True)
class Trial:
    """A model trained at a rate. The error is that on the held-out samples; infinite where there is none."""

    lr: float
    error: float
    run: Path
    why: str = ""  # there is no error


@dataclass(frozen=True)
class Search:
    """What was tried for each model, by rate, and what it was tried on."""

    trials: dict[str, list[Trial]]
    store: Store  # its test split are the samples that were held out
    epochs: int

    def chosen(self, name: str) -> float:
        return best_of(self.trials[name]).lr

    def settings(self) -> dict[str, Any]:
        sizes = self.store.card.splits
        return {
            "epochs": self.epochs,
            "seed": SEED,
            "train_samples": sizes["train"],
            "held_out_samples": sizes["test"],
            "store": str(self.store.path),
        }

    def rows(self, name: str) -> list[dict[str, Any]]:
        """For a record: an error that is no number is None."""
        return [
            {
                "lr": trial.lr,
                "error": trial.error if math.isfinite(trial.error) else None,
                "why": trial.why,
                "run": str(trial.run),
            }
            for trial in self.trials[name]
        ]


def search_rates(study: Study, models: Mapping[str, Any], folder: Path, at_once: int, rates: Sequence[float]) -> Search:
    """`study` says what all trainings share; models and rates are varied here. `rates`: what all models begin with."""
    data, epochs = _shared(study)
    store = held_out_store(data)
    held = store.card.splits["test"]
    logger.info("%s: what its runs call test are %d training samples, held out in %s", study.name, held, store.path)
    on_store = {"data.store": str(store.path), "data.generate": None}
    all_of_it = {f"data.{name}_samples": None for name in ("train", "validation", "test")}
    shared = study.model_copy(update={"set": {**study.set, **on_store, **all_of_it}, "seeds": [SEED]})
    wanted = {name: sorted(rates) for name in models}
    while True:
        trials = _tried(shared, models, wanted, folder, at_once)
        wider = {name: rate for name, tried in trials.items() if (rate := rate_beyond(name, tried)) is not None}
        if not wider:
            return Search(trials, store, epochs)
        for name, rate in wider.items():
            logger.info("%s: %s is best at an edge of its rates: %g comes next", study.name, name, rate)
            wanted[name] = sorted([*wanted[name], rate])


def _shared(study: Study) -> tuple[DataConfig, int]:
    (any_run,) = plan(study.model_copy(update={"seeds": [SEED]}))
    return any_run.recipe.data, any_run.recipe.training.epochs


def held_out_store(data: DataConfig) -> Store:
    """The store beside that of the data with the training samples that a recipe uses, the last of them in place of the
    test split; where there is a validation split, that is in its place. Made where it is missing."""
    ensure_store(data)
    store = open_store(data.store)
    train = samples_of(store, "train", data.train_samples)
    if "validation" in store.card.splits:
        held = samples_of(store, "validation", data.validation_samples)
    else:
        first = len(train) - max(1, len(train) // HELD_OUT)
        train, held = np.split(train, [first])
    if not len(train):
        raise DataError(f"{store.path}: has one training sample; none can be held out of it to choose a rate by")
    name = f"{store.path.stem}_held_out_{len(held)}_of_{len(train) + len(held)}.zarr"
    return subset(store, {"train": train, "test": held}, store.path.with_name(name))


def _tried(
    study: Study, models: Mapping[str, Any], wanted: Mapping[str, Sequence[float]], folder: Path, at_once: int
) -> dict[str, list[Trial]]:
    """Train what is missing of all models at the rates that are wanted of each."""
    pairs = [(name, rate) for name, rates in wanted.items() for rate in rates]
    rows = [{"model": dict(models[name]), "training.lr": rate} for name, rate in pairs]
    of_pairs = study.model_copy(update={"rows": rows})
    planned = plan(of_pairs)
    folders = [RunFolder(folder / run.name) for run in planned]
    waiting = [
        run
        for run, one in zip(planned, folders, strict=True)
        if not one.is_finished and divergence(one) is None  # it would diverge again
    ]
    if waiting:
        train_here(of_pairs, waiting, folder, at_once, may_diverge=True)
    trials: dict[str, list[Trial]] = {name: [] for name in models}
    new = {run.name for run in waiting}
    for (name, rate), one in zip(pairs, folders, strict=True):
        trial = _trial(rate, one)
        trials[name].append(trial)
        if trial.why and one.path.name in new:
            logger.warning("%s diverged at a rate of %g, which counts as worst (%s)", name, rate, trial.run)
    return trials


def _trial(rate: float, folder: RunFolder) -> Trial:
    diverged = divergence(folder)
    if diverged is not None:
        return Trial(rate, math.inf, folder.path, diverged)
    error = float(result_of(folder)["rel_l2"])
    if math.isfinite(error):
        return Trial(rate, error, folder.path)
    return Trial(rate, math.inf, folder.path, f"its error on the held-out samples is {error}")


def best_of(trials: Sequence[Trial]) -> Trial:
    """Of equal ones the lowest rate: where nothing can be trained, lower ones are tried next."""
    return min(trials, key=lambda trial: (trial.error, trial.lr))


def rate_beyond(name: str, trials: Sequence[Trial]) -> float | None:
    """The next rate beyond the edge that the best one lies at; None where it lies inside."""
    best, rates = best_of(trials).lr, sorted(trial.lr for trial in trials)
    if best not in (rates[0], rates[-1]):
        return None
    found = next_rate(best, up=best == rates[-1])
    if not _LEAST <= found <= _MOST:
        raise GeomanoError(
            f"{name}: no rate between {rates[0]:g} and {rates[-1]:g} is better than those on both sides of it; look at "
            f"its runs in {trials[0].run.parent}, or set one rate for all models with --set training.lr=..."
        )
    return found


def next_rate(rate: float, up: bool) -> float:
    """Of 1, 3, 10, 30, ...: about the same factor everywhere."""
    digit, exponent = f"{rate:.0e}".split("e")
    assert digit in ("1", "3")
    power = int(exponent) + (1 if up and digit == "3" else -1 if not up and digit == "1" else 0)
    return float(f"{'3' if digit == '1' else '1'}e{power}")
