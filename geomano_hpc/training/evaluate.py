"""Evaluation: the relative L2 error of each test sample in physical units, averaged over the split."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from geomano_hpc.data import load_split, load_splits, share_of_rank
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import GeomanoError
from geomano_hpc.models import build_model
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.records.predictions import Predictions
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.records.weights import load_weights, trained_grid
from geomano_hpc.training.tasks import Network, Task


@dataclass(frozen=True)
class Evaluation:
    """Means over the samples of a split, in physical units."""

    rel_l2: float  # of the whole target, all frames of a rollout together
    rel_l2_by_frame: list[float] | None  # of a rollout
    samples: int


def evaluate(
    network: Network, task: Task, batch_size: int, device: torch.device, ranks: Ranks, pause: Callable[[], object] = int
) -> Evaluation:
    """Every sample counts once, and the same numbers come out however many ranks there are.

    All ranks call the network equally often, since at ZeRO 3 each call needs all of them. `pause` is called after each.
    """
    samples = len(task.split)
    mine = share_of_rank(torch.arange(samples), ranks.rank, ranks.world_size)
    largest_share = -(-samples // ranks.world_size)
    calls = -(-largest_share // batch_size)
    schedule = list(mine.split(batch_size)) if len(mine) else []
    idle = [torch.zeros(1, dtype=torch.long)] * (calls - len(schedule))
    errors_SF: torch.Tensor | None = None
    for number, batch in enumerate(task.split.batches([*schedule, *idle])):
        found_BF = task.frame_errors(network, batch, device).double().cpu()
        if errors_SF is None:
            errors_SF = torch.zeros(samples, found_BF.shape[1], dtype=torch.float64)
        if number < len(schedule):
            errors_SF[schedule[number]] = found_BF
        pause()
    assert errors_SF is not None
    if ranks.world_size > 1:  # each row is of one rank, and zero on the others: the sum is exact
        torch.distributed.all_reduce(errors_SF)
    whole, *frames = errors_SF.mean(dim=0).tolist()
    return Evaluation(whole, frames if task.split.kind == "rollout" else None, samples)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode for a while: a model with batch norms or dropout would learn from what it predicts."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def predict_first(network: Network, task: Task, most: int, device: torch.device) -> Predictions:
    """Of the first samples of a split, to be looked at. Every rank computes them."""
    batch = task.split.batch(torch.arange(min(most, len(task.split))))
    fields = (batch.input_BHWC, batch.target_BHWC, task.predict(network, batch, device))
    return Predictions(task.split.kind, *(field.detach().cpu().float().numpy() for field in fields))


def load_trained(
    folder: RunFolder, store: Path | None = None, resolution: int | None = None, best: bool = False
) -> tuple[nn.Module, Task]:
    """The trained model of a run and the test split of its store, or of another store of the same kind; at another
    resolution, or with the weights of the best evaluation, if asked for."""
    recipe = folder.recipe()
    file = folder.weights(best)
    opened, samples = open_store(store or recipe.data.store), None if store else recipe.data.test_samples
    if resolution is None:
        data = recipe.data.model_copy(update={"test_samples": samples})
        split = load_splits(opened, data, ("test",)).splits["test"]
    else:
        split = load_split(opened, "test", samples, resolution)
    grid = trained_grid(file)
    tied = recipe.model.tied_to_grid()
    if tied and grid != split.grid:
        raise GeomanoError(
            f"{folder.path}: {tied} is tied to the grid of its training, {grid}; the data has {split.grid}: train "
            "without it to evaluate at any resolution"
        )
    model = build_model(recipe.model, split.in_channels, split.out_channels, grid)
    split = load_weights(file, model, split)
    return model.eval(), Task(split, recipe.loss.gradient_weight, recipe.compute.precision)
