"""Benchmark of accuracy: our model and live baselines on the same data, for the same epochs, at equal size.

It is a study like any other: every model and seed has a run folder, and what is finished is not repeated.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geomano_hpc.bench.measurement import Measurement
from geomano_hpc.bench.record import make_record, write_record
from geomano_hpc.config import Recipe, load_recipe
from geomano_hpc.errors import ConfigError, GeomanoError
from geomano_hpc.launch import PlannedRun, Study, plan
from geomano_hpc.launch.run import run_here
from geomano_hpc.models import build_model, count_parameters
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.shapes import data_shape

LARGEST_RATIO_OF_SIZES = 1.2


@dataclass(frozen=True)
class Contest:
    """A recipe and the models that are put into it. `bars`: (ours, other) -> ratio of errors that ours is to reach;
    None where the ratio is only shown. `lr`: where a model learns better at another rate than the recipe's."""

    recipe: str
    models: dict[str, dict[str, Any]]
    bars: dict[tuple[str, str], float | None]
    lr: dict[str, float] = field(default_factory=dict)


_OURS = {"name": "geomano", "depth": 4, "embedding": 32, "dstate": 16}

# Recipe darcy_best in small. The baselines have a positional encoding of their own, too.
_BEST = {"orders": "corners", "positional_encoding": True}

CONTESTS = {
    "darcy": Contest(
        "bench_darcy",
        {
            "geomano": {**_OURS, "kind": "2d", "correction": "0011"},
            "geomano corners": {**_OURS, "kind": "2d", "correction": "0011", "orders": "corners"},
            "geomano best": {**_OURS, **_BEST, "kind": "2d", "correction": "0011"},
            "transolver": {"name": "transolver", "depth": 4, "embedding": 24, "heads": 4, "slices": 64},
            "fno": {"name": "fno", "depth": 4, "embedding": 9, "modes": 6},
        },
        {
            ("geomano best", "transolver"): 0.45,
            ("geomano best", "fno"): 0.7,
            ("geomano corners", "transolver"): 0.45,
            ("geomano corners", "fno"): 0.7,
            ("geomano", "transolver"): 0.45,
            ("geomano", "fno"): 0.7,
            ("geomano corners", "geomano"): None,
        },
        lr={"transolver": 1e-3},
    ),
    "navier_stokes": Contest(
        "bench_navier_stokes",
        {
            "geomano": {**_OURS, "domain": "3d", "kind": "1d", "correction": "learnable"},
            "transolver": {"name": "transolver", "depth": 4, "embedding": 26, "heads": 2, "slices": 32},
            "fno": {"name": "fno", "depth": 4, "embedding": 8, "modes": 7},
        },
        {("geomano", "transolver"): 0.8, ("geomano", "fno"): None},
    ),
}


def bench_accuracy(
    contests: Mapping[str, Contest],
    seeds: int,
    changes: Mapping[str, Any],
    runs: Path,
    at_once: int,
    out: Path | None,
) -> dict[str, Any]:
    """Train what is missing and compare. All sizes are checked before the first run starts."""
    for path in changes:
        if path.split(".")[0] == "model":
            raise ConfigError(f"{path}: the benchmark chooses the models; change training, loss or data")
    studies = {
        problem: Study(
            name=f"accuracy_{problem}",
            recipe=contest.recipe,
            set=dict(changes),
            zip=_variants(contest, changes),
            seeds=list(range(seeds)),
        )
        for problem, contest in contests.items()
    }
    planned = {problem: _by_model(contests[problem], plan(study)) for problem, study in studies.items()}
    sizes = {problem: _sizes(problem, members) for problem, members in planned.items()}
    settings: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    ratios: list[Measurement] = []
    content: dict[str, Any] = {}
    for problem, study in studies.items():
        members = planned[problem]
        everything = [run for runs_of_one in members.values() for run in runs_of_one]
        outcome = run_here(study, everything, runs / study.name, at_once)
        if outcome.failed:
            raise GeomanoError("; ".join(f"{run} failed: {error}" for run, error in outcome.failed.items()))
        found = {}
        for name, planned_runs in members.items():
            folders = [RunFolder(runs / study.name / run.name) for run in planned_runs]
            found[name] = {"problem": problem, "model": name, **_row(folders, sizes[problem][name])}
        rows += found.values()
        ratios += _ratios(problem, contests[problem], found)
        settings[problem] = {
            "recipe": everything[0].recipe.model_dump(mode="json", exclude={"model"}),
            "models": {name: one[0].recipe.model.model_dump(mode="json") for name, one in members.items()},
        }
        content = make_record("accuracy", {"seeds": seeds, "problems": settings}, rows, ratios)
        write_record(out, content)  # after each problem: an interruption keeps what there is
    return content


def _variants(contest: Contest, changes: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The models and, unless one is set for all of them, their learning rates."""
    models = list(contest.models.values())
    if "training.lr" in changes or not contest.lr:
        return {"model": models}
    usual = load_recipe(contest.recipe).training.lr
    return {"model": models, "training.lr": [contest.lr.get(name, usual) for name in contest.models]}


def _by_model(contest: Contest, runs: list[PlannedRun]) -> dict[str, list[PlannedRun]]:
    """The plan has the models one after the other, each with all its seeds."""
    seeds = len(runs) // len(contest.models)
    return {name: runs[number * seeds : (number + 1) * seeds] for number, name in enumerate(contest.models)}


def _sizes(problem: str, members: Mapping[str, list[PlannedRun]]) -> dict[str, int]:
    """Parameters of each model; models of unequal size are not compared."""
    sizes = {name: _parameters(runs[0].recipe) for name, runs in members.items()}
    if max(sizes.values()) > LARGEST_RATIO_OF_SIZES * min(sizes.values()):
        found = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        raise ConfigError(
            f"{problem}: parameter counts differ by more than 20 % ({found}), so their errors are not compared; "
            "choose sizes that are closer"
        )
    return sizes


def _parameters(recipe: Recipe) -> int:
    height, width, in_channels, out_channels = data_shape(recipe.data)
    return count_parameters(build_model(recipe.model, in_channels, out_channels, (height, width)))


def _row(folders: list[RunFolder], parameters: int) -> dict[str, Any]:
    results = [result for result in (folder.result() for folder in folders) if result is not None]
    if len(results) < len(folders):
        waiting = ", ".join(str(folder.path) for folder in folders if not folder.is_finished)
        raise GeomanoError(
            f"not finished, perhaps since another process is at it: {waiting}; start the benchmark again"
        )
    errors = [float(result["rel_l2"]) for result in results]
    return {
        "parameters": parameters,
        "lr": folders[0].recipe().training.lr,
        "errors": errors,
        "mean": statistics.fmean(errors),
        "std": statistics.stdev(errors) if len(errors) > 1 else None,
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
    """The errors of the models, for people."""
    lines = []
    for problem, settings in content["settings"]["problems"].items():
        training = settings["recipe"]["training"]
        lines.append(f"{problem}: {training['epochs']} epochs, batch {training['batch_size']}")
        columns = f"{'seeds':>5}  {'lr':>6}  {'parameters':>10}  {'s/epoch':>7}"
        lines.append(f"  {'model':16}  {'test rel-L2':>19}  {columns}")
        for row in (row for row in content["rows"] if row["problem"] == problem):
            spread = "" if row["std"] is None else f" ± {row['std']:.5f}"
            error = f"{row['mean']:.5f}{spread}"
            counts = f"{len(row['errors']):5}  {row['lr']:6g}  {row['parameters']:10,}  {row['seconds_per_epoch']:7.1f}"
            lines.append(f"  {row['model']:16}  {error:>19}  {counts}")
    return lines
