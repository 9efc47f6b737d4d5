"""Pictures of a model: fields and errors, spectra of a flow, the learned correction R. Drawn without torch.

Axes: B batch, H x W grid, C channels (frames), K directions, E channels of the scan, N dstates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from geomano_hpc.training.records.predictions import Predictions

CORRECTION = "kernel.R"  # how the name of a learned correction ends


@dataclass(frozen=True)
class _Row:
    """One sample, or one frame of a rollout [H, W]."""

    label: str
    given: np.ndarray
    truth: np.ndarray
    predicted: np.ndarray


def _rows_of(shown: Predictions) -> list[_Row]:
    """A row per sample (steady) or per frame of the first sample (rollout): the first, the middle, the last."""
    given, truth, predicted = shown.input_BHWC, shown.truth_BHWC, shown.predicted_BHWC
    if shown.kind == "steady":
        errors = [np.linalg.norm(p - t) / np.linalg.norm(t) for p, t in zip(predicted, truth, strict=True)]
        return [
            _Row(f"sample {i}, rel-L2 {error:.3f}", given[i, ..., 0], truth[i, ..., 0], predicted[i, ..., 0])
            for i, error in enumerate(errors)
        ]
    return [
        _Row(f"frame {frame + 1}", given[0, ..., -1], truth[0, ..., frame], predicted[0, ..., frame])
        for frame in _first_middle_last(truth.shape[-1])
    ]


def draw_fields(shown: Predictions) -> Figure:
    """Input, truth, prediction and error of each row; lines for a 1D domain."""
    rows = _rows_of(shown)
    names = ("input" if shown.kind == "steady" else "last input frame", "truth", "prediction", "error")
    figure, grid = plt.subplots(len(rows), 4, figsize=(11, 2.6 * len(rows)), layout="constrained", squeeze=False)
    for row, axes in zip(rows, grid, strict=True):
        low, high = float(row.truth.min()), float(row.truth.max())
        error = row.predicted - row.truth
        reach = float(np.abs(error).max())
        pictures: list[tuple[Any, dict[str, Any]]] = [
            (row.given, {"cmap": "gray"}),
            (row.truth, {"vmin": low, "vmax": high}),
            (row.predicted, {"vmin": low, "vmax": high}),
            (error, {"cmap": "RdBu_r", "vmin": -reach, "vmax": reach}),
        ]
        for axis, (field, style) in zip(axes, pictures, strict=True):
            if field.shape[0] == 1:
                axis.plot(field[0])
                continue
            image = axis.imshow(field.T, origin="lower", **style)
            axis.set(xticks=[], yticks=[])
            figure.colorbar(image, ax=axis, shrink=0.85)
        axes[0].set_ylabel(row.label)
    for axis, name in zip(grid[0], names, strict=True):
        axis.set_title(name)
    return figure


def energy_spectrum(field_BHW: np.ndarray) -> np.ndarray:
    """Mean over the batch of sum |u_hat(k)|^2 over the shells |k| = 0, 1, ... of a periodic square field."""
    points = field_BHW.shape[-1]
    spectrum = np.square(np.abs(np.fft.fft2(field_BHW.astype(np.float64), norm="forward"))).mean(axis=0)
    frequencies = np.fft.fftfreq(points, d=1 / points)
    shells = np.hypot(frequencies[:, None], frequencies[None, :]).round().astype(int)
    return np.bincount(shells.ravel(), weights=spectrum.ravel())[: points // 2]


def draw_spectra(shown: Predictions) -> Figure:
    """Spectra of the first, the middle and the last frame: what a rollout loses first is its fine structure."""
    truth_BHWC, predicted_BHWC = shown.truth_BHWC, shown.predicted_BHWC
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


def draw_corrections(weights: Mapping[str, np.ndarray]) -> Figure | None:
    """The learned R of each layer (a row) and direction (a column), E x N; None for a model without one."""
    layers = [R_KEN for name, R_KEN in weights.items() if name.endswith(CORRECTION)]
    if not layers:
        return None
    directions = layers[0].shape[0]
    reach = max(float(np.abs(R_KEN).max()) for R_KEN in layers) or 1.0
    size = (2.2 * directions + 1, 1.6 * len(layers) + 0.6)
    figure, grid = plt.subplots(len(layers), directions, figsize=size, layout="constrained", squeeze=False)
    for number, (R_KEN, axes) in enumerate(zip(layers, grid, strict=True), start=1):
        for axis, R_EN in zip(axes, R_KEN, strict=True):
            image = axis.imshow(R_EN.T, cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto")
            axis.set(xticks=[], yticks=[])
            axis.set_title(f"mean {float(R_EN.mean()):+.3f}", fontsize="small")
        axes[0].set_ylabel(f"layer {number}")
    figure.suptitle("learned R by layer and scan direction (channels across, dstates down)", fontsize="medium")
    figure.colorbar(image, ax=grid, shrink=0.8)
    return figure


def _first_middle_last(frames: int) -> list[int]:
    return sorted({0, frames // 2, frames - 1})
