"""How the errors of a comparison fell, over the epochs and over the time that they took."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from geomano_hpc.atomic import replacing
from geomano_hpc.training.records.run_folder import RunFolder


class Curve(NamedTuple):
    """Of one run, at the epochs that were evaluated."""

    epochs: list[int]
    seconds: list[float]  # of training so far
    errors: list[float]


def curve_of(run: RunFolder) -> Curve:
    """The test error by epoch, as the run wrote it."""
    curve, passed = Curve([], [], []), 0.0
    for line in run.metrics():
        passed += line["seconds"]
        if "test_rel_l2" in line:
            curve.epochs.append(line["epoch"])
            curve.seconds.append(passed)
            curve.errors.append(line["test_rel_l2"])
    return curve


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Of the seeds of a model, which are evaluated at the same epochs."""
    shared = [list(np.mean(values, axis=0)) for values in zip(*[one[1:] for one in curves], strict=True)]
    return Curve(curves[0].epochs, *shared)


def draw_curves(content: Mapping[str, Any], file: Path) -> None:
    """For each problem the error over epochs and over time: a line for each model, the mean of its seeds, and the range
    of the seeds around it."""
    from matplotlib.figure import Figure

    problems = list(content["settings"]["problems"])
    figure = Figure(figsize=(10.0, 4.0 * len(problems)), layout="constrained")
    for pair, problem in zip(figure.subplots(len(problems), 2, squeeze=False), problems, strict=True):
        rows = [row for row in content["rows"] if row["problem"] == problem]
        for number, row in enumerate(rows):
            curves = [curve_of(RunFolder(Path(run))) for run in row["runs"]]
            mean = mean_curve(curves)
            errors = np.array([one.errors for one in curves])
            for axes, along in zip(pair, (mean.epochs, mean.seconds), strict=True):
                axes.plot(along, mean.errors, color=f"C{number}", label=row["model"])
                axes.fill_between(along, errors.min(0), errors.max(0), color=f"C{number}", alpha=0.15, linewidth=0)
        pair[0].set(yscale="log", xlabel="epoch", ylabel="test rel-L2")
        pair[1].set(yscale="log", xscale="log", xlabel="seconds of training")
        pair[0].legend(fontsize=8)
        pair[0].set_title(problem, fontsize=10)
        pair[1].set_title(f"{problem}, at equal time", fontsize=10)
        for axes in pair:
            axes.grid(alpha=0.2, which="both")
    with replacing(file) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
