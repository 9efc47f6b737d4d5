"""Pictures of a model: fields and errors, spectra of a flow, the learned correction R. Drawn without torch.

Axes: B batch, H x W grid, C channels (the fields F of each frame), K directions, E channels of the scan, N dstates.
"""

import math
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
    """One field of a sample, or of one frame of a rollout [H, W]."""

    label: str
    given_name: str
    given: np.ndarray
    truth: np.ndarray
    predicted: np.ndarray


def _rows_of(shown: Predictions) -> list[_Row]:
    """Steady: a row per sample and field, with the input field of the same name or place. Rollout: a row per field and
    frame of the first sample: the first, the middle, the last."""
    names = _names(shown)
    if shown.kind == "steady":
        return [
            _steady_row(shown, names, sample, number)
            for sample in range(len(shown.truth_BHWC) if len(names) == 1 else 1)
            for number in range(len(names))
        ]
    F = len(names)
    frames = _first_middle_last(shown.truth_BHWC.shape[-1] // F)
    last = ((shown.frames_in or shown.input_BHWC.shape[-1] // F) - 1) * F
    rows = []
    for number, name in enumerate(names):
        for frame in frames:
            truth, predicted = (one[0, ..., frame * F + number] for one in (shown.truth_BHWC, shown.predicted_BHWC))
            label = f"frame {frame + 1}" if F == 1 else f"{name}, frame {frame + 1}"
            label = f"{label}, rel-L2 {_relative_l2(truth, predicted):.3f}"
            rows.append(_Row(label, "last input frame", shown.input_BHWC[0, ..., last + number], truth, predicted))
    return rows


def _names(shown: Predictions) -> tuple[str, ...]:
    """Of the target's fields; a run of an earlier version did not write them."""
    channels = shown.truth_BHWC.shape[-1]
    if shown.kind == "steady" and len(shown.targets) != channels:
        return tuple(f"target.{number}" for number in range(channels))
    return shown.targets


def _steady_row(shown: Predictions, names: tuple[str, ...], sample: int, number: int) -> _Row:
    truth, predicted = shown.truth_BHWC[sample, ..., number], shown.predicted_BHWC[sample, ..., number]
    error = _relative_l2(truth, predicted)
    place = min(number, shown.input_BHWC.shape[-1] - 1)
    given = shown.inputs[place] if len(shown.inputs) > place else "input"
    label = f"sample {sample}" if len(names) == 1 else names[number]
    field = shown.input_BHWC[sample, ..., place]
    return _Row(f"{label}, rel-L2 {error:.3f}", f"input {given}", field, truth, predicted)


def _relative_l2(truth: np.ndarray, predicted: np.ndarray) -> float:
    size = float(np.linalg.norm(truth))
    return float(np.linalg.norm(predicted - truth)) / size if size else math.inf


def draw_fields(shown: Predictions) -> Figure:
    """Input, truth, prediction and error of each row; of lines, truth and prediction in one plot."""
    rows = _rows_of(shown)
    if shown.truth_BHWC.shape[1] == 1:
        return _draw_lines(rows)
    several = len({row.given_name for row in rows}) > 1
    first = "input" if shown.kind == "steady" else "last input frame"
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
            image = axis.imshow(field.T, origin="lower", **style)
            axis.set(xticks=[], yticks=[])
            figure.colorbar(image, ax=axis, shrink=0.85)
        axes[0].set_ylabel(row.label)
        if several:
            axes[0].set_title(row.given_name, fontsize="small")
    names = (grid[0][0].get_title() if several else first, "truth", "prediction", "error")
    for axis, name in zip(grid[0], names, strict=True):
        axis.set_title(name, fontsize="small" if several and axis is grid[0][0] else None)
    return figure


def _draw_lines(rows: list[_Row]) -> Figure:
    figure, grid = plt.subplots(len(rows), 3, figsize=(11, 2.2 * len(rows)), layout="constrained", squeeze=False)
    for number, (row, (given, both, error)) in enumerate(zip(rows, grid, strict=True)):
        given.plot(row.given[0], color="0.5", linewidth=1.2)
        both.plot(row.truth[0], label="truth", linewidth=1.4)
        both.plot(row.predicted[0], "--", label="prediction", linewidth=1.4)
        error.plot(row.predicted[0] - row.truth[0], color="C3", linewidth=1.2)
        given.set_ylabel(row.label, fontsize="small")
        given.set_title(row.given_name, fontsize="small")
        for axis in (given, both, error):
            axis.grid(alpha=0.3)
            axis.tick_params(labelsize=7)
        if number == 0:
            both.set_title("truth and prediction", fontsize="small")
            error.set_title("error", fontsize="small")
            both.legend(fontsize="x-small")
    return figure


def energy_spectrum(field_BHW: np.ndarray) -> np.ndarray:
    """Mean over the batch of sum |u_hat(k)|^2 over the shells |k| = 0, 1, ... of a periodic square field."""
    points = field_BHW.shape[-1]
    spectrum = np.square(np.abs(np.fft.fft2(field_BHW.astype(np.float64), norm="forward"))).mean(axis=0)
    frequencies = np.fft.fftfreq(points, d=1 / points)
    shells = np.hypot(frequencies[:, None], frequencies[None, :]).round().astype(int)
    return np.bincount(shells.ravel(), weights=spectrum.ravel())[: points // 2]


def draw_spectra(shown: Predictions) -> Figure:
    """Spectra of the first, the middle and the last frame, a row for each field: what a rollout loses first is its fine
    structure."""
    names = _names(shown)
    frames = _first_middle_last(shown.truth_BHWC.shape[-1] // len(names))
    size = (3.6 * len(frames), 3.0 * len(names))
    figure, grid = plt.subplots(len(names), len(frames), figsize=size, layout="constrained", squeeze=False)
    for number, (name, axes) in enumerate(zip(names, grid, strict=True)):
        for axis, frame in zip(axes, frames, strict=True):
            for label, field, style in (("truth", shown.truth_BHWC, "-"), ("prediction", shown.predicted_BHWC, "--")):
                spectrum = energy_spectrum(field[..., frame * len(names) + number])
                axis.plot(range(1, len(spectrum)), spectrum[1:], style, label=label)
            axis.set(title=f"frame {frame + 1}", xlabel="wave number", xscale="log", yscale="log")
            axis.grid(alpha=0.3)
        axes[0].set_ylabel("energy of the shell" if len(names) == 1 else f"{name}: energy of the shell")
    grid[0][0].legend(fontsize="small")
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
