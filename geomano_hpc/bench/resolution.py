"""Benchmark of resolutions: models that were trained on one grid, evaluated on others, without training again.

The trainings are studies like any other: every model and seed has a run folder, and what is finished is not repeated.
The test samples are the same on every grid: every n-th point of one raw file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from geomano_hpc.atomic import replacing
from geomano_hpc.bench import contenders
from geomano_hpc.bench.measurement import Measurement
from geomano_hpc.bench.record import make_record, write_record
from geomano_hpc.bench.remembered import Remembered
from geomano_hpc.bench.trainings import by_model, refuse_models, spread, spread_in_words, train_here
from geomano_hpc.config import load_recipe
from geomano_hpc.errors import ConfigError
from geomano_hpc.launch import PlannedRun, Study, plan
from geomano_hpc.models.geomano import GeoMaNO
from geomano_hpc.progress import progress
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.engines.engine import pick_device
from geomano_hpc.training.evaluate import evaluate, load_trained
from geomano_hpc.training.records.run_folder import RunFolder

RECIPE = "bench_darcy"
BATCH = 8


@dataclass(frozen=True)
class Contender:
    """A model, and the bar for its error on another grid over that on its own; None where the ratio is only shown."""

    model: Mapping[str, Any]
    finer: float | None = None
    coarser: float | None = None


CONTENDERS = {
    "geomano best": Contender(contenders.DARCY["geomano best"], 1.08, 1.15),
    "geomano": Contender(contenders.DARCY["geomano"], 1.15, 1.15),
    "fno": Contender(contenders.DARCY["fno"]),
    "uno": Contender(contenders.DARCY["uno"]),
    "transolver": Contender(contenders.DARCY["transolver"]),
}


def bench_resolution(
    models: Mapping[str, Contender],
    trained_on: int,
    evaluated_on: Sequence[int],
    seeds: int,
    changes: Mapping[str, Any],
    runs: Path,
    at_once: int,
    out: Path | None,
) -> dict[str, Any]:
    """Train what is missing on one grid, and evaluate it on all of them."""
    refuse_models(changes)
    study = Study(
        name=f"resolution_darcy_{trained_on}",
        recipe=RECIPE,
        set={**_data(trained_on, changes), **changes},
        zip={"model": [dict(one.model) for one in models.values()]},
        seeds=list(range(seeds)),
    )
    planned = plan(study)
    folder = runs / study.name
    train_here(study, planned, folder, at_once)
    grids = sorted({trained_on, *evaluated_on})
    rows = list(_rows(models, planned, folder, grids))
    content = make_record(
        "resolution",
        {"trained_on": trained_on, "evaluated_on": grids, "seeds": seeds, "recipe": RECIPE, "changes": dict(changes)},
        rows,
        list(_ratios(rows, models, trained_on)),
    )
    write_record(out, content)
    return content


def _data(trained_on: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's own store, or one of the same samples on another grid of its raw points."""
    usual = load_recipe(RECIPE).data
    assert usual.generate is not None
    if "data.store" in changes or trained_on == max(usual.generate.kept_points):
        return {}
    raw = usual.generate.grid
    if trained_on < 2 or (raw - 1) % (trained_on - 1):
        raise ConfigError(f"--trained-on {trained_on}: every n-th of {raw} points gives other grids, such as 43 and 85")
    store = usual.store.with_name(f"{usual.store.stem}_{trained_on}.zarr")
    return {"data.store": str(store), "data.generate.stride": (raw - 1) // (trained_on - 1)}


def _rows(
    models: Mapping[str, Contender], planned: Sequence[PlannedRun], folder: Path, grids: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """One for each model, grid and way to see the grid."""
    cases = [
        (name, points, counted)
        for name, one in models.items()
        for points in grids
        for counted in ([False, True] if one.model["name"] == GeoMaNO.Config.model_fields["name"].default else [False])
    ]
    of_model = by_model(models, planned)
    known = Remembered(folder / "resolutions.json")
    with progress("evaluate", len(cases)) as advance:
        for name, points, counted in cases:
            errors = [
                known.error(
                    f"{run.name} at {points}{' counted' if counted else ''}",
                    partial(_error, RunFolder(folder / run.name), points, counted),
                )
                for run in of_model[name]
            ]
            yield {"model": name + (", points counted" if counted else ""), "points": points, **spread(errors)}
            advance(f"{name} at {points}")


def _error(run: RunFolder, points: int, counted: bool) -> float:
    model, task = load_trained(run, resolution=points)
    if counted:
        assert isinstance(model, GeoMaNO)
        model.counts_points = True
    ranks = Ranks(0, 1, 0)
    device = pick_device(ranks)
    return evaluate(model.to(device), task, BATCH, device, ranks).rel_l2


def _ratios(
    rows: Sequence[Mapping[str, Any]], models: Mapping[str, Contender], trained_on: int
) -> Iterator[Measurement]:
    at = {(row["model"], row["points"]): row["mean"] for row in rows}
    for (name, points), error in at.items():
        if points == trained_on:
            continue
        one = models.get(name)
        bar = None if one is None else one.finer if points > trained_on else one.coarser
        detail = "mean test rel-L2 over that on the grid of the training"
        yield Measurement(f"{name}: {points} / {trained_on}", error / at[name, trained_on], "x", detail, at_most=bar)


def resolution_table(content: Mapping[str, Any]) -> list[str]:
    """Errors by grid, for people."""
    settings, rows = content["settings"], content["rows"]
    grids = settings["evaluated_on"]
    seeds = settings["seeds"]
    of_seeds = f"{seeds} seed{'s' if seeds > 1 else ''}"
    lines = [f"trained on {settings['trained_on']} points a side, {of_seeds}; test rel-L2 on"]
    lines.append(f"  {'model':28}" + "".join(f"  {points:>19}" for points in grids))
    for name in dict.fromkeys(row["model"] for row in rows):
        found = {row["points"]: row for row in rows if row["model"] == name}
        lines.append(f"  {name:28}" + "".join(f"  {spread_in_words(found[points]):>19}" for points in grids))
    return lines


def draw_resolutions(content: Mapping[str, Any], file: Path) -> None:
    """Error over points per side, a line for each model; dashed where points are counted."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, LogLocator

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(row["model"] for row in content["rows"]))
    colours: dict[str, str] = {}
    for name in names:
        rows = [row for row in content["rows"] if row["model"] == name]
        base = name.removesuffix(", points counted")
        colours.setdefault(base, f"C{len(colours)}")
        points, means = [row["points"] for row in rows], [row["mean"] for row in rows]
        spread = [row["std"] or 0.0 for row in rows]
        style = "--" if name != base else "-"
        axes.errorbar(points, means, spread, label=name, color=colours[base], linestyle=style, marker="o", capsize=3)
    trained_on = content["settings"]["trained_on"]
    axes.axvline(trained_on, color="0.7", linewidth=1, zorder=0)
    axes.set(xscale="log", yscale="log", xlabel="points per side", ylabel="test rel-L2")
    axes.set_title(f"trained on {trained_on} x {trained_on} points, evaluated on other grids", fontsize=10)
    axes.set_xticks(content["settings"]["evaluated_on"], labels=[str(n) for n in content["settings"]["evaluated_on"]])
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.legend(fontsize=8)
    with replacing(file) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
