"""Pictures of a study: loss curves, scalability curves, and prediction, truth and error of test samples."""

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter, NullLocator

from geomano_hpc.atomic import replacing
from geomano_hpc.report.runs import Variant
from geomano_hpc.training.records.pictures import draw_fields
from geomano_hpc.training.records.predictions import Predictions
from geomano_hpc.training.records.run_folder import RunFolder

MOST_CURVES = 8
_MOST_TICKS = 8
_POINTS = 400  # of a curve: more cannot be seen


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn when it is needed: on white for a file, on dark for a page in dark colours."""

    name: str
    title: str
    note: str
    draw: Callable[[], Any]

    def write(self, folder: Path) -> list[Path]:
        """As PNG and as PDF."""
        with _style("default"):
            figure = self.draw()
        files = [folder / f"{self.name}.{kind}" for kind in ("png", "pdf")]
        for file in files:
            with replacing(file) as temporary:
                figure.savefig(temporary, dpi=130, format=file.suffix.removeprefix("."))
        plt.close(figure)
        return files

    def on_dark(self) -> bytes:
        with _style("dark_background"):
            figure = self.draw()
            data = io.BytesIO()
            figure.savefig(data, dpi=130, format="png", transparent=True)
        plt.close(figure)
        return data.getvalue()


@contextlib.contextmanager
def _style(name: str) -> Iterator[None]:
    # Type 42: text in a PDF stays text, as journals ask.
    with (
        plt.style.context(name),
        mpl.rc_context({"pdf.fonttype": 42, "axes.spines.top": False, "axes.spines.right": False}),
    ):
        yield


def loss_curves(variants: Sequence[Variant]) -> Any:
    """A colour for each of the best variants and a line for each seed; of a single variant a colour for each seed."""
    figure, (training, judged) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", sharex=True)
    splits: dict[str, None] = {}
    for number, variant in enumerate(variants):
        for seed, run in enumerate(variant.runs):
            lines = run.folder.metrics()
            if not lines:
                continue
            alone = len(variants) == 1
            colour = f"C{seed if alone else number}"
            label = f"seed {run.recipe.training.seed}" if alone else (variant.label if not seed else None)
            style = {"color": colour, "label": label, "alpha": 0.9 if alone else 0.7, "linewidth": 1.3}
            split, evaluated = _evaluated(lines)
            splits |= {split: None} if evaluated else {}
            for axes, key, points in ((training, "train_loss", lines), (judged, f"{split}_rel_l2", evaluated)):
                thin = points[:: max(1, len(points) // _POINTS)]
                marker = "o" if len(points) == 1 else None
                axes.plot([line["epoch"] for line in thin], [line[key] for line in thin], marker=marker, **style)
    of_what = " and ".join(splits or ["test"])
    for axes, title in ((training, "training loss per sample"), (judged, f"{of_what} relative L2 error")):
        axes.set(title=title, xlabel="epoch", yscale="log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _plain_log(axes)
        axes.grid(alpha=0.3)
    if training.get_legend_handles_labels()[0]:
        figure.legend(
            *training.get_legend_handles_labels(),
            loc="outside lower center",
            ncols=min(len(variants) or 1, 2) if len(variants) > 1 else 5,
            fontsize="small",
            frameon=False,
        )
    return figure


def _evaluated(lines: Sequence[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """The split that a run was judged on while it trained, and the lines that say so; with a validation split the test
    split may be judged only once, after the last epoch."""
    found = {
        split: [line for line in lines if line.get(f"{split}_rel_l2") is not None] for split in ("test", "validation")
    }
    split = max(found, key=lambda split: len(found[split]))  # the first of equals
    return split, found[split]


def scalability_curves(curves: dict[str, Sequence[Variant]]) -> Any:
    """Figure "GeoMaNO's scalability": the error in percent over each key, mean and deviation, and every seed."""
    figure, panels = plt.subplots(1, len(curves), figsize=(4.2 * len(curves), 3.6), layout="constrained", squeeze=False)
    for axes, (name, variants) in zip(panels[0], curves.items(), strict=True):
        done = sorted((v for v in variants if v.error.n), key=_varied_number)
        values = [_varied_number(v) for v in done]
        means = [100 * (v.error.mean or 0.0) for v in done]
        deviations = [100 * (v.error.deviation or 0.0) for v in done]
        axes.errorbar(values, means, yerr=deviations, marker="o", capsize=3, color="C0", linewidth=1.6)
        seeds = [(value, 100 * e) for value, v in zip(values, done, strict=True) for e in v.error.values]
        axes.plot(*zip(*seeds, strict=True), ".", color="C1", alpha=0.6)
        axes.set(xscale="log", xlabel=name)
        axes.xaxis.set_major_locator(FixedLocator(values[:: -(-len(values) // _MOST_TICKS)]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("test relative L2 error (%)")
    return figure


def _varied_number(variant: Variant) -> float:
    (value,) = variant.runs[0].point.values()
    return float(value)


def predictions(folder: RunFolder) -> Callable[[], Any]:
    """Reads at once, draws later: a row per test sample (steady) or per frame of the first sample (rollout)."""
    shown = Predictions.read(folder.predictions_file)
    return lambda: draw_fields(shown)


def _plain_log(axes: Any) -> None:
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
