"""Small changes to recipes, what is compared of two runs, and launches of several ranks."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from geomano_hpc.config import Recipe
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.evaluate import evaluate
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.tasks import Task

TWO_RANKS = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def changed(recipe: Recipe, **training: object) -> Recipe:
    return Recipe.model_validate({**recipe.model_dump(), "training": {**recipe.training.model_dump(), **training}})


def curve(folder: RunFolder) -> list[tuple[float, float | None]]:
    return [(line["train_loss"], line["test_rel_l2"]) for line in folder.metrics()]


def starts(folder: RunFolder) -> list[dict[str, Any]]:
    """What environment.json says of every start of the run."""
    return list(json.loads(folder.environment_file.read_text())["starts"])


def mean_error(model: nn.Module, task: Task, batch_size: int) -> float:
    """Relative L2 on the CPU, averaged over the split."""
    return evaluate(model.eval(), task, batch_size, torch.device("cpu"), Ranks(0, 1, 0)).rel_l2


def step_losses(folder: RunFolder, name: str = "loss") -> dict[int, float]:
    """Loss by optimiser step, as TensorBoard shows it; the recipe logs every step."""
    events = EventAccumulator(str(folder.tensorboard), size_guidance={"scalars": 0}).Reload()
    return {event.step: event.value for event in events.Scalars(f"steps/{name}")}


# What may differ between two runs that compute the same: time, memory, and averages of time.
_MEASURED = ("seconds", "test_seconds", "validation_seconds", "samples_per_second", "data_wait_share", "memory_gib")


def what_a_run_computed(folder: RunFolder) -> object:
    """All of it, to be compared bit by bit: metrics, weights, and the newest checkpoint with its random states."""
    metrics = [{key: value for key, value in line.items() if key not in _MEASURED} for line in folder.metrics()]
    newest = sorted(folder.checkpoints.glob("step_*"))[-1]
    optimizer = {name: tensor.tolist() for name, tensor in load_file(newest / "optimizer.safetensors").items()}
    files = [folder.weights_file, newest / "model.safetensors"]
    files += [folder.best_weights_file] if folder.best_weights_file.is_file() else []
    return newest.name, metrics, step_losses(folder), optimizer, [file.read_bytes() for file in files]


def back_to(step: int, folder: RunFolder) -> None:
    """The run as it was when this step was saved."""
    for later in folder.checkpoints.iterdir():
        if int(later.name[5:14]) > step:
            shutil.rmtree(later)
    for file in (folder.result_file, folder.weights_file):
        file.unlink()


def run(command: tuple[str, ...], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=900)


def two_ranks(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run((*TWO_RANKS, "-m", "geomano_hpc", "train", *arguments), folder)
