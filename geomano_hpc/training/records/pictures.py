"""Pictures of a model: fields and errors, spectra of a flow, the learned correction R.

Axes: B batch, H x W grid, C channels (frames), K directions, E channels of the scan, N dstates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import torch

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from geomano_hpc.training.losses import relative_l2


@dataclass(frozen=True)
class Row:
    """One sample, or one frame of a rollout [H, W]."""

    label: str
    given: torch.Tensor
    truth: torch.Tensor
    predicted: torch.Tensor


def rows_of(task: str, given_BHWC: torch.Tensor, truth_BHWC: torch.Tensor, predicted_BHWC: torch.Tensor) -> list[Row]:
    """A row per sample (steady) or per frame of the first sample (rollout): the first, the middle, the last."""
    if task == "steady":
        errors = relative_l2(predicted_BHWC, truth_BHWC).tolist()
        return [
            Row(
                f"sample {i}, rel-L2 {error:.3f}",
                given_BHWC[i, ..., 0],
                truth_BHWC[i, ..., 0],
                predicted_BHWC[i, ..., 0],
            )
            for i, error in enumerate(errors)
        ]
    return [
        Row(f"frame {frame + 1}", given_BHWC[0, ..., -1], truth_BHWC[0, ..., frame], predicted_BHWC[0, ..., frame])
        for frame in _first_middle_last(truth_BHWC.shape[-1])
    ]


def draw_fields(task: str, rows: Sequence[Row]) -> Figure:
    """Input, truth, prediction and error of each row; lines for a 1D domain."""
    names = ("input" if task == "steady" else "last input frame", "truth", "prediction", "error")
    figure, grid = plt.subplots(len(rows), 4, figsize=(11, 2.6 * len(rows)), layout="constrained", squeeze=False)
    for row, axes in zip(rows, grid, strict=True):
        low, high = float(row.truth.min()), float(row.truth.max())
        error = (row.predicted - row.truth).numpy()
        reach = float(np.abs(error).max())
        pictures: list[tuple[Any, dict[str, Any]]] = [
            (row.given, {"cmap": "gray"}),
            (row.truth, {"vmin": low, "vmax": high}),
            (row.predicted, {"vmin": low, "vmax": high}),
            (error, {"cmap": "RdBu_r", "vmin": -reach, "vmax": reach}),
        ]
        for axis, (field, style) in zip(axes, pictures, strict=True):
            if field.shape[0] == 1:
                axis.plot(np.asarray(field)[0])
                continue
            image = axis.imshow(np.asarray(field).T, origin="lower", **style)
            axis.set(xticks=[], yticks=[])
            figure.colorbar(image, ax=axis, shrink=0.85)
        axes[0].set_ylabel(row.label)
    for axis, name in zip(grid[0], names, strict=True):
        axis.set_title(name)
    return figure


def energy_spectrum(field_BHW: torch.Tensor) -> torch.Tensor:
    """Mean over the batch of sum |u_hat(k)|^2 over the shells |k| = 0, 1, ... of a periodic square field."""
    points = field_BHW.shape[-1]
    spectrum = torch.fft.fft2(field_BHW.double(), norm="forward").abs().square().mean(dim=0)
    frequencies = torch.fft.fftfreq(points, d=1 / points)
    shells = torch.hypot(frequencies[:, None], frequencies[None, :]).round().long()
    return torch.zeros(int(shells.max()) + 1, dtype=torch.float64).index_add(0, shells.flatten(), spectrum.flatten())[
        : points // 2
    ]


def draw_spectra(truth_BHWC: torch.Tensor, predicted_BHWC: torch.Tensor) -> Figure:
    """Spectra of the first, the middle and the last frame: what a rollout loses first is its fine structure."""
    frames = _first_middle_last(truth_BHWC.shape[-1])
    figure, axes = plt.subplots(1, len(frames), figsize=(3.6 * len(frames), 3.0), layout="constrained", squeeze=False)
    for axis, frame in zip(axes[0], frames, strict=True):
        for label, field, style in (("truth", truth_BHWC, "-"), ("prediction", predicted_BHWC, "--")):
            spectrum = energy_spectrum(field[..., frame])
            axis.plot(range(1, len(spectrum)), spectrum[1:], style, label=label)
        axis.set(title=f"frame {frame + 1}", xlabel="wave number", xscale="log", yscale="log")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("energy of the shell")
    axes[0][0].legend(fontsize="small")
    return figure


def draw_corrections(weights: Mapping[str, torch.Tensor]) -> Figure | None:
    """The learned R of each layer (a row) and direction (a column), E x N; None for a model without one."""
    layers = [tensor for name, tensor in weights.items() if name.endswith("kernel.R")]
    if not layers:
        return None
    directions = layers[0].shape[0]
    reach = max(float(R_KEN.abs().max()) for R_KEN in layers) or 1.0
    size = (2.2 * directions + 1, 1.6 * len(layers) + 0.6)
    figure, grid = plt.subplots(len(layers), directions, figsize=size, layout="constrained", squeeze=False)
    for number, (R_KEN, axes) in enumerate(zip(layers, grid, strict=True), start=1):
        for axis, R_EN in zip(axes, R_KEN, strict=True):
            image = axis.imshow(R_EN.T.numpy(), cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto")
            axis.set(xticks=[], yticks=[])
            axis.set_title(f"mean {float(R_EN.mean()):+.3f}", fontsize="small")
        axes[0].set_ylabel(f"layer {number}")
    figure.suptitle("learned R by layer and scan direction (channels across, dstates down)", fontsize="medium")
    figure.colorbar(image, ax=grid, shrink=0.8)
    return figure


def _first_middle_last(frames: int) -> list[int]:
    return sorted({0, frames // 2, frames - 1})
