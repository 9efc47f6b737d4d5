"""Pictures of a study: loss curves of all runs, and prediction, truth and error of test samples."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from geomano_hpc.atomic import replacing
from geomano_hpc.training.evaluate import load_trained
from geomano_hpc.training.losses import relative_l2
from geomano_hpc.training.run_folder import RunFolder


def loss_curves(folders: Sequence[RunFolder], out: Path) -> None:
    figure, (training, test) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained", sharex=True)
    for folder in folders:
        lines = folder.metrics()
        if not lines:
            continue
        label = folder.path.name.rpartition("_")[0] or folder.path.name
        training.plot([line["epoch"] for line in lines], [line["train_loss"] for line in lines], label=label)
        evaluated = [line for line in lines if line["test_rel_l2"] is not None]
        test.plot([line["epoch"] for line in evaluated], [line["test_rel_l2"] for line in evaluated], label=label)
    for axes, title in ((training, "training loss per sample"), (test, "test relative L2 error")):
        axes.set(title=title, xlabel="epoch", yscale="log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
    test.legend(fontsize="small")
    _save(figure, out)


def predictions(folder: RunFolder, out: Path, samples: int = 3) -> None:
    """A row per test sample (steady) or per frame of the first sample (rollout)."""
    model, task = load_trained(folder)
    chosen = torch.arange(min(samples, len(task.split)))
    device = torch.device("cpu")
    predicted = task.predict(model, chosen, device)
    truth = task.split.target_SHWC[chosen]
    given = task.split.input_SHWC[chosen]
    if task.split.task == "steady":
        errors = relative_l2(predicted, truth).tolist()
        rows = [
            (
                f"sample {index}, rel-L2 {errors[index]:.3f}",
                given[index, ..., 0],
                truth[index, ..., 0],
                predicted[index, ..., 0],
            )
            for index in chosen.tolist()
        ]
        names = ("input", "truth", "prediction", "error")
    else:
        frames = sorted({0, truth.shape[-1] // 2, truth.shape[-1] - 1})
        rows = [
            (f"frame {frame + 1}", given[0, ..., -1], truth[0, ..., frame], predicted[0, ..., frame])
            for frame in frames
        ]
        names = ("last input frame", "truth", "prediction", "error")
    _draw_rows(rows, names, out)


def _draw_rows(
    rows: Sequence[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]], names: Sequence[str], out: Path
) -> None:
    figure, grid = plt.subplots(len(rows), 4, figsize=(11, 2.6 * len(rows)), layout="constrained", squeeze=False)
    for (label, given, truth, predicted), axes in zip(rows, grid, strict=True):
        low, high = float(truth.min()), float(truth.max())
        error = (predicted - truth).numpy()
        reach = float(np.abs(error).max())
        pictures: list[tuple[Any, dict[str, Any]]] = [
            (given, {"cmap": "gray"}),
            (truth, {"vmin": low, "vmax": high}),
            (predicted, {"vmin": low, "vmax": high}),
            (error, {"cmap": "RdBu_r", "vmin": -reach, "vmax": reach}),
        ]
        for axis, (field, style) in zip(axes, pictures, strict=True):
            image = axis.imshow(np.asarray(field).T, origin="lower", **style)
            axis.set(xticks=[], yticks=[])
            figure.colorbar(image, ax=axis, shrink=0.85)
        axes[0].set_ylabel(label)
    for axis, name in zip(grid[0], names, strict=True):
        axis.set_title(name)
    _save(figure, out)


def _save(figure: Any, out: Path) -> None:
    with replacing(out) as temporary:
        figure.savefig(temporary, dpi=110, format=out.suffix.removeprefix("."))
    plt.close(figure)
