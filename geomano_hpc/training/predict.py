"""Predictions from fields of one's own, in physical units. Needs the run folder only, not the data of the training.

Axes: B samples, H x W grid, C channels (frames).
"""

from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap

from geomano_hpc.atomic import replacing
from geomano_hpc.errors import ConfigError, DataError
from geomano_hpc.models import build_model
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.engines.engine import pick_device
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.records.weights import load_alone
from geomano_hpc.training.tasks import Task


def predict_file(
    folder: RunFolder, given: Path, out: Path, frames: int | None = None, best: bool = False
) -> tuple[int, ...]:
    """Read inputs from one .npy file and write predictions to another; returns the shape of what was written.

    A single field (H, W) comes out as one; the channel axis is left out where there is one channel and the input has
    none either.
    """
    recipe, weights = folder.recipe(), folder.weights(best)
    fields = _read(given)
    alone = load_alone(weights)
    task = Task(alone.split, recipe.loss.gradient_weight, recipe.compute.precision)
    if frames is not None and task.split.task == "steady":
        raise ConfigError(f"--frames: {folder.path} solves a steady problem, which has no frames")
    inputs_BHWC, was_single = _with_all_axes(fields, alone.in_channels, given)
    grid = (inputs_BHWC.shape[1], inputs_BHWC.shape[2])
    if getattr(recipe.model, "encoder", "") == "global" and grid != alone.grid:
        raise DataError(f"{given}: has {grid} points; encoder global is tied to the grid of its training, {alone.grid}")
    device = pick_device(Ranks(0, 1, 0))
    model = build_model(recipe.model, alone.in_channels, alone.out_channels, alone.grid)
    model.load_state_dict(alone.weights)
    model.to(device).eval()
    channels = (frames or alone.frames) if task.split.task == "rollout" else alone.out_channels
    shape: tuple[int, ...] = (len(inputs_BHWC), *grid, channels)
    if channels == 1 and fields.ndim < 4 and task.split.task == "steady":
        shape = shape[:-1]
    if was_single:
        shape = shape[1:]
    with replacing(out) as temporary:
        target = open_memmap(temporary, mode="w+", dtype=np.float32, shape=shape)
        for sample, field in enumerate(inputs_BHWC):
            one = torch.tensor(np.asarray(field[None], dtype=np.float32), device=device)
            predicted = task.roll_out(model, one, channels).cpu().numpy()
            target[... if was_single else sample] = predicted.reshape(shape if was_single else shape[1:])
        target.flush()
    return shape


def _read(given: Path) -> np.ndarray:
    try:
        fields: np.ndarray = np.load(given, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{given}: cannot be read as a .npy file ({error})") from error
    if not isinstance(fields, np.ndarray) or fields.dtype.kind not in "fiu":
        raise DataError(f"{given}: not an array of real numbers")
    return fields


def _with_all_axes(fields: np.ndarray, channels: int, given: Path) -> tuple[np.ndarray, bool]:
    """[B, H, W, C], and whether the file holds one sample without an axis for it."""
    if fields.ndim == 4 and fields.shape[-1] == channels:
        return fields, False
    if fields.ndim == 3 and channels > 1 and fields.shape[-1] == channels:
        return fields[None], True
    if fields.ndim == 3 and channels == 1:
        return fields[..., None], False
    if fields.ndim == 2 and channels == 1:
        return fields[None, ..., None], True
    wanted = "(H, W), (samples, H, W)" if channels == 1 else f"(H, W, {channels})"
    raise DataError(
        f"{given}: has shape {fields.shape}; the model takes {channels} channels: {wanted} or "
        f"(samples, H, W, {channels})"
    )
