"""Evaluation: the relative L2 error of each test sample in physical units, averaged over the split."""

from pathlib import Path

import torch
from torch import nn

from geomano_hpc.config import GeomanoConfig
from geomano_hpc.data import load_split, load_splits, share_of_rank
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import GeomanoError
from geomano_hpc.models import build_model
from geomano_hpc.training.ranks import Ranks
from geomano_hpc.training.run_folder import RunFolder
from geomano_hpc.training.tasks import Task
from geomano_hpc.training.weights import load_weights, trained_grid


def mean_error(model: nn.Module, task: Task, batch_size: int, device: torch.device, ranks: Ranks) -> float:
    """Mean over the split. Every sample is counted once, however many ranks there are."""
    model.eval()
    total = torch.zeros((), dtype=torch.float64)
    mine = share_of_rank(torch.arange(len(task.split)), ranks.rank, ranks.world_size)
    for batch in task.split.batches(mine.split(batch_size) if len(mine) else ()):
        total += task.errors(model, batch, device).double().sum().cpu()
    model.train()
    if ranks.world_size > 1:
        total = total.to(device)
        torch.distributed.all_reduce(total)
    return total.item() / len(task.split)


def load_trained(folder: RunFolder, store: Path | None = None, resolution: int | None = None) -> tuple[nn.Module, Task]:
    """The trained model of a run and the test split of its store, or of another store of the same kind; at another
    resolution, if asked for."""
    recipe = folder.recipe()
    if not folder.weights_file.is_file():
        raise GeomanoError(f"{folder.path}: the run has no trained weights yet (no {folder.weights_file.name})")
    opened, samples = open_store(store or recipe.data.store), None if store else recipe.data.test_samples
    if resolution is None:
        data = recipe.data.model_copy(update={"test_samples": samples})
        split = load_splits(opened, data, ("test",)).splits["test"]
    else:
        split = load_split(opened, "test", samples, resolution)
    grid = trained_grid(folder.weights_file)
    if isinstance(recipe.model, GeomanoConfig) and recipe.model.encoder == "global" and grid != split.grid:
        raise GeomanoError(
            f"{folder.path}: encoder global is tied to the grid of its training, {grid}; the data has {split.grid}: "
            "train with encoder pointwise or local to evaluate at any resolution"
        )
    model = build_model(recipe.model, split.in_channels, split.out_channels, grid)
    split = load_weights(folder.weights_file, model, split)
    return model.eval(), Task(split, recipe.loss.gradient_weight, recipe.compute.precision)
