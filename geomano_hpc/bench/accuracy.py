"""Benchmark of accuracy: our model and live baselines on the same data, for the same epochs, at equal size.

The rate of every model is chosen first, alike and without a look at the test split (rates.py). Then all seeds of each
are trained at it on all training samples, and judged on the test split.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from geomano_hpc.bench import contenders
from geomano_hpc.bench.measurement import Measurement
from geomano_hpc.bench.rate_views import rate_table
from geomano_hpc.bench.rates import RATES, Search, search_rates
from geomano_hpc.bench.record import make_record, write_record
from geomano_hpc.bench.trainings import by_model, refuse_models, result_of, spread, spread_in_words, train_here
from geomano_hpc.config import Recipe
from geomano_hpc.errors import ConfigError
from geomano_hpc.launch import Study, plan
from geomano_hpc.models import build_model, count_parameters
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.shapes import data_shape

LARGEST_RATIO_OF_SIZES = 1.2


@dataclass(frozen=True)
class Contest:
    """A recipe and the models that are put into it. `bars`: (ours, other) -> ratio of errors that ours is to reach;
    None where the ratio is only shown. `searched`: a rate is searched for each model, else all have the recipe's."""

    recipe: str
    models: Mapping[str, Mapping[str, Any]]
    bars: Mapping[tuple[str, str], float | None]
    searched: bool = True

    def only(self, names: Sequence[str]) -> "Contest":
        """Some of the models."""
        for name in names:
            if name not in self.models:
                known = ", ".join(self.models)
                raise ConfigError(f"unknown model {name!r} of {self.recipe}; choose from {known}, with commas between")
        bars = {pair: bar for pair, bar in self.bars.items() if set(pair) <= set(names)}
        return replace(self, models={name: self.models[name] for name in self.models if name in names}, bars=bars)


CONTESTS = {
    "darcy": Contest(
        "bench_darcy",
        contenders.DARCY,
        {
            ("geomano best", "transolver"): 0.25,
            ("geomano best", "fno"): 0.6,
            ("geomano best", "uno"): None,
            ("geomano corners", "transolver"): None,
            ("geomano corners", "fno"): None,
            ("geomano", "transolver"): None,
            ("geomano", "fno"): None,
            ("geomano corners", "geomano"): None,
        },
    ),
    "navier_stokes": Contest(
        "bench_navier_stokes",
        contenders.NAVIER_STOKES,
        {("geomano", "transolver"): 0.5, ("geomano", "fno"): 0.85, ("geomano", "uno"): None},
    ),
    "navier_stokes_best": Contest(
        "bench_navier_stokes_best",
        contenders.NAVIER_STOKES_BEST,
        {
            ("geomano best", "transolver"): 0.5,
            ("geomano best", "fno"): 0.85,
            ("geomano best", "uno"): None,
            ("geomano best", "without the scan"): None,
        },
    ),
    "darcy_converged": Contest(
        "bench_darcy_converged",
        {name: contenders.DARCY[name] for name in ("geomano", "geomano best", "transolver", "fno")},
        {(ours, other): None for ours in ("geomano", "geomano best") for other in ("transolver", "fno")},
        searched=False,
    ),
}
USUAL = ("darcy", "navier_stokes")  # the others take many hours


def bench_accuracy(
    contests: Mapping[str, Contest],
    seeds: int,
    changes: Mapping[str, Any],
    runs: Path,
    at_once: int,
    out: Path | None,
    rates: Sequence[float] = RATES,
    rate_epochs: int | None = None,
) -> dict[str, Any]:
    """Train what is missing and compare. All sizes are checked before the first run starts. `rates` are those that the
    search begins with, `rate_epochs` its epochs where they are others than those of the comparison; a rate that is
    among the changes is that of all models, and nothing is searched."""
    refuse_models(changes)
    sizes = {problem: _sizes(problem, contest, changes) for problem, contest in contests.items()}
    settings: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    ratios: list[Measurement] = []
    content: dict[str, Any] = {}
    for problem, contest in contests.items():
        study = Study(name=f"accuracy_{problem}", recipe=contest.recipe, set=dict(changes), seeds=list(range(seeds)))
        search = None
        if contest.searched and "training.lr" not in changes:
            search = _search(study, contest, rate_epochs, runs, at_once, rates)
        study = study.model_copy(update={"zip": _variants(contest, search)})
        planned = plan(study)
        train_here(study, planned, runs / study.name, at_once)
        members = by_model(contest.models, planned)
        found = {
            name: {
                "problem": problem,
                "model": name,
                **_row([RunFolder(runs / study.name / run.name) for run in of_model], sizes[problem][name]),
                "rates": [] if search is None else search.rows(name),
            }
            for name, of_model in members.items()
        }
        rows += found.values()
        ratios += _ratios(problem, contest, found)
        settings[problem] = {
            "recipe": planned[0].recipe.model_dump(mode="json", exclude={"model"}),
            "models": {name: one[0].recipe.model.model_dump(mode="json") for name, one in members.items()},
            "rates": None if search is None else search.settings(),
        }
        content = make_record("accuracy", {"seeds": seeds, "problems": settings}, rows, ratios)
        write_record(out, content)  # after each problem: an interruption keeps what there is
    return content


def _search(
    study: Study, contest: Contest, epochs: int | None, runs: Path, at_once: int, rates: Sequence[float]
) -> Search:
    shorter = {} if epochs is None else {"training.epochs": epochs}
    of_rates = study.model_copy(update={"name": f"{study.name}_rates", "set": {**study.set, **shorter}})
    return search_rates(of_rates, contest.models, runs / of_rates.name, at_once, rates)


def _variants(contest: Contest, search: Search | None) -> dict[str, list[Any]]:
    """The models, each with the rate that was found for it."""
    models = [dict(model) for model in contest.models.values()]
    if search is None:
        return {"model": models}
    return {"model": models, "training.lr": [search.chosen(name) for name in contest.models]}


def _sizes(problem: str, contest: Contest, changes: Mapping[str, Any]) -> dict[str, int]:
    """Parameters of each model; models of unequal size are not compared."""
    study = Study(
        name=problem, recipe=contest.recipe, set=dict(changes), zip={"model": list(contest.models.values())}, seeds=[0]
    )
    sizes = {name: _parameters(run.recipe) for name, run in zip(contest.models, plan(study), strict=True)}
    if max(sizes.values()) > LARGEST_RATIO_OF_SIZES * min(sizes.values()):
        found = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        raise ConfigError(
            f"{problem}: parameter counts differ by more than 20 % ({found}), so their errors are not compared; "
            "choose sizes that are closer"
        )
    return sizes


def _parameters(recipe: Recipe) -> int:
    height, width, in_channels, out_channels = data_shape(recipe)
    return count_parameters(build_model(recipe.model, in_channels, out_channels, (height, width)))


def _row(folders: list[RunFolder], parameters: int) -> dict[str, Any]:
    results = [result_of(folder) for folder in folders]
    return {
        "parameters": parameters,
        "lr": folders[0].recipe().training.lr,
        **spread([float(result["rel_l2"]) for result in results]),
        "seconds_per_epoch": statistics.fmean(result["train_seconds"] / result["epochs"] for result in results),
        "runs": [str(folder.path) for folder in folders],
    }


def _ratios(problem: str, contest: Contest, rows: Mapping[str, dict[str, Any]]) -> list[Measurement]:
    return [
        Measurement(
            f"{problem}: {ours} / {other}",
            rows[ours]["mean"] / rows[other]["mean"],
            "x",
            "mean test rel-L2 over the other's",
            at_most=bar,
        )
        for (ours, other), bar in contest.bars.items()
    ]


def accuracy_table(content: Mapping[str, Any]) -> list[str]:
    """The errors by rate and those of the models, for people."""
    lines = []
    for problem, settings in content["settings"]["problems"].items():
        rows = [row for row in content["rows"] if row["problem"] == problem]
        if settings["rates"] is not None:
            lines += [*rate_table(problem, settings["rates"], rows), ""]
        training = settings["recipe"]["training"]
        lines.append(f"{problem}: {training['epochs']} epochs, batch {training['batch_size']}")
        columns = f"{'seeds':>5}  {'lr':>6}  {'parameters':>10}  {'s/epoch':>7}"
        lines.append(f"  {'model':16}  {'test rel-L2':>19}  {columns}")
        for row in rows:
            counts = f"{len(row['errors']):5}  {row['lr']:6g}  {row['parameters']:10,}  {row['seconds_per_epoch']:7.1f}"
            lines.append(f"  {row['model']:16}  {spread_in_words(row):>19}  {counts}")
    return lines
