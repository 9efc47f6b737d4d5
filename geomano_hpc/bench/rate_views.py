"""The search of rates for people: a table and a picture of the error over the rate."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from geomano_hpc.atomic import replacing


def rate_table(problem: str, search: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Models down, rates across. `rows` are those of the record, each with its model, the chosen lr and its rates."""
    total = search["train_samples"] + search["held_out_samples"]
    lines = [
        f"{problem}: rel-L2 on {search['held_out_samples']} of {total} training samples, held out, by rate (* chosen)",
        f"  {search['epochs']} epochs on the other {search['train_samples']}, seed {search['seed']}",
    ]
    rates = sorted({trial["lr"] for row in rows for trial in row["rates"]})
    lines.append(f"  {'model':16}" + "".join(f"  {rate:>9g}" for rate in rates))
    for row in rows:
        found = {trial["lr"]: _error(trial, trial["lr"] == row["lr"]) for trial in row["rates"]}
        lines.append((f"  {row['model']:16}" + "".join(f"  {found.get(rate, ''):>9}" for rate in rates)).rstrip())
    return lines


def _error(trial: Mapping[str, Any], chosen: bool) -> str:
    return "diverged" if trial["error"] is None else f"{'*' * chosen}{trial['error']:.5f}"


def draw_rates(content: Mapping[str, Any], file: Path) -> None:
    """Error over rate, a line for each model; a star is the rate that was chosen, a cross one that diverged."""
    from matplotlib.figure import Figure

    problems = [name for name, settings in content["settings"]["problems"].items() if settings["rates"]]
    figure = Figure(figsize=(6.0 * len(problems), 4.2), layout="constrained")
    for axes, problem in zip(figure.subplots(1, len(problems), squeeze=False)[0], problems, strict=True):
        rows = [row for row in content["rows"] if row["problem"] == problem]
        top = max(trial["error"] for row in rows for trial in row["rates"] if trial["error"] is not None)
        for number, row in enumerate(rows):
            tried = [trial for trial in row["rates"] if trial["error"] is not None]
            points = [(trial["lr"], trial["error"]) for trial in tried]
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, color=f"C{number}", label=row["model"])
            axes.plot(row["lr"], dict(points)[row["lr"]], marker="*", markersize=13, color=f"C{number}")
            for trial in row["rates"]:
                if trial["error"] is None:
                    axes.plot(trial["lr"], top, marker="x", markersize=8, color=f"C{number}")
        search = content["settings"]["problems"][problem]["rates"]
        axes.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="rel-L2 on held-out samples")
        axes.set_title(f"{problem}, {search['epochs']} epochs; a cross diverged", fontsize=10)
        axes.legend(fontsize=8)
    with replacing(file) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
