"""Evaluation: the relative L2 error of each test sample in physical units, averaged over the split."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from geomano_hpc.data import Batch, Signature, Split, load_split, load_splits, share_of_rank
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import GeomanoError
from geomano_hpc.models import build_model
from geomano_hpc.training.at_rest import at_rest
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.records.predictions import Predictions
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.records.weights import Alone, load_alone, load_weights
from geomano_hpc.training.sampling import axes_of, place
from geomano_hpc.training.tasks import Network, Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """Means over the samples of a split, in physical units."""

    rel_l2: float  # of the whole target, all frames of a rollout together; averaged over the fields
    rel_l2_by_frame: list[float] | None  # of a rollout
    samples: int
    rel_l2_by_field: dict[str, float] | None = None  # where there are several


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
    errors_SFT: torch.Tensor | None = None
    for number, batch in enumerate(task.split.batches([*schedule, *idle])):
        found_BFT = task.field_errors(network, batch, device).double().cpu()
        if errors_SFT is None:
            errors_SFT = torch.zeros(samples, *found_BFT.shape[1:], dtype=torch.float64)
        if number < len(schedule):
            errors_SFT[schedule[number]] = found_BFT
            if not found_BFT.isfinite().all():
                _say_why(task, batch, schedule[number])
        pause()
    assert errors_SFT is not None
    if ranks.world_size > 1:  # each row is of one rank, and zero on the others: the sum is exact
        torch.distributed.all_reduce(errors_SFT)
    return _evaluation(errors_SFT, task)


def _say_why(task: Task, batch: Batch, samples: torch.Tensor) -> None:
    zero = at_rest(task.signature, batch.target_BHWC, samples.tolist())
    if zero:
        logger.warning("%s of the split: a relative error of it is not defined, and the mean is no number", zero)


def _evaluation(errors_SFT: torch.Tensor, task: Task) -> Evaluation:
    """Of each sample and field: the error of all frames together, then that of each."""
    mean_FT = errors_SFT.mean(dim=0)
    whole, *frames = mean_FT.mean(dim=0).tolist()
    names, by_field = task.signature.targets, None
    if len(names) > 1:
        by_field = dict(zip(names, mean_FT[:, 0].tolist(), strict=True))
    return Evaluation(whole, frames if task.signature.is_rollout else None, len(errors_SFT), by_field)


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
    known = task.signature
    given, truth, predicted = (field.detach().cpu().float().numpy() for field in fields)
    frames_in = known.frames_in if known.is_rollout else None
    names = (known.inputs, known.targets, known.units)
    return Predictions(known.kind, given, truth, predicted, *names, frames_in=frames_in)


def load_trained(
    folder: RunFolder,
    store: Path | None = None,
    resolution: int | None = None,
    best: bool | None = None,
    split_name: str = "test",
) -> tuple[nn.Module, Task]:
    """The trained model of a run and the test split of its store, or another split, or that of another store of the
    same kind; at another resolution, if asked for. The weights are those of the result, unless `best` says which."""
    recipe = folder.recipe()
    file = folder.weights(best)
    data = recipe.data
    most = None if store else getattr(data, f"{split_name}_samples")
    opened = open_store(store or data.store)
    if resolution is None:
        data = data.model_copy(update={f"{split_name}_samples": most})
        split = load_splits(opened, data, (split_name,)).splits[split_name]
    else:
        split = load_split(opened, split_name, most, resolution)
    alone = load_alone(file)
    found = axes_of(split.signature, split.grid)
    tied = recipe.model.tied_to_grid()
    if tied and alone.grid != split.grid:
        raise GeomanoError(
            f"{folder.path}: {tied} is tied to the grid of its training, {alone.grid}; the data has {split.grid}: "
            "train without it to evaluate at any resolution"
        )
    split = trained_split(alone, split, str(opened.path), str(folder.path))
    model = build_model(recipe.model, split.in_channels, split.out_channels, alone.grid)
    load_weights(alone, model, file)
    place(model, axes_of(alone.signature, alone.grid), found, str(opened.path))
    return model.eval(), Task(split, recipe.loss.gradient_weight, recipe.compute.precision)


def trained_split(alone: Alone, split: Split, data: str, run: str) -> Split:
    """The split with the normalisers of the training. Its fields must be those that the model was trained on, in their
    order; what another program calls otherwise is taken by its place, aloud."""
    trained, found = alone.signature, split.signature
    if _sizes(trained) != _sizes(found) or _in_other_places(trained, found):
        raise GeomanoError(
            f"{data}: its fields ({_fields_in_words(found)}) do not fit {run}, which was trained on "
            f"{_fields_in_words(trained)}; evaluate on data of the same kind"
        )
    if _names(trained) != _names(found):
        logger.warning(
            "%s: its fields (%s) are called otherwise than those of the training (%s), and taken in this order",
            data,
            _fields_in_words(found),
            _fields_in_words(trained),
        )
    return replace(
        split, signature=replace(trained, frames_out=found.frames_out, boundary=found.boundary, axes=found.axes)
    )


def _names(known: Signature) -> tuple[tuple[str, ...], ...]:
    return known.inputs, known.targets, known.context


def _sizes(known: Signature) -> tuple[object, ...]:
    return known.kind, known.frames_in, *map(len, _names(known))


def _in_other_places(one: Signature, other: Signature) -> bool:
    """Whether a field of the same name stands somewhere else."""
    pairs = zip(_names(one), _names(other), strict=True)
    return any(name in there and there.index(name) != place for here, there in pairs for place, name in enumerate(here))


def _fields_in_words(known: Signature) -> str:
    given = f"{known.frames_in} frames of {', '.join(known.inputs)}" if known.is_rollout else ", ".join(known.inputs)
    return f"{' + '.join([given, *known.context])} -> {', '.join(known.targets)}"
