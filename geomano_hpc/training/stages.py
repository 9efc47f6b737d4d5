"""Coarse to fine: a training may begin on every n-th point of its data, and ends on all of them.

The samples of a batch, their order and the schedule of the rate are those of a training without stages. A model
that knows where its points lie is told so for each stage: the grid of the last one is its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from geomano_hpc.config import Recipe
from geomano_hpc.data.resolution import stride_within
from geomano_hpc.data_prep.store import Store
from geomano_hpc.errors import ConfigError
from geomano_hpc.training.sampling import axes_of, place
from geomano_hpc.training.tasks import Task


@dataclass(frozen=True)
class Stage:
    """Epochs `first` to `last`, counted from 1, on one grid."""

    first: int
    last: int
    task: Task

    @property
    def grid(self) -> tuple[int, ...]:
        return self.task.split.grid


@dataclass(frozen=True)
class Stages:
    """All stages of a training, in their order. `source` is named in errors."""

    of_training: Sequence[Stage]
    source: str

    def at(self, epoch: int) -> Stage:
        return next(stage for stage in self.of_training if epoch <= stage.last)

    @property
    def own(self) -> Task:
        """On the grid of the data itself, on which the training ends."""
        return self.of_training[-1].task

    @property
    def is_one(self) -> bool:
        return len(self.of_training) == 1

    def place(self, model: nn.Module, task: Task) -> None:
        """Tell the model where the points of this task lie, in points of the training's own grid."""
        trained, here = (axes_of(one.signature, one.split.grid) for one in (self.own, task))
        place(model, trained, here, self.source)


def stages_of(recipe: Recipe, task: Task, store: Store) -> Stages:
    """Those of the recipe; `task` is that of the training split as it is stored."""
    source, epochs = str(recipe.data.store), recipe.training.epochs
    if not recipe.training.resolutions:
        return Stages([Stage(1, epochs, task)], source)
    *_, (ends_on, _) = recipe.training.resolutions
    if ends_on != max(task.split.grid):
        raise ConfigError(
            f"training.resolutions ends on {ends_on} points, and {source} has {max(task.split.grid)} along its longer "
            "side: the last stage is on the grid of the data"
        )
    found, done = [], 0
    for points, epochs in recipe.training.resolutions:
        split = task.split.coarser(stride_within(store, points))
        recipe.model.check_grid(split.plane)
        found.append(Stage(done + 1, done + epochs, replace(task, split=split)))
        done += epochs
    tied = recipe.model.tied_to_grid()
    if tied and any(stage.grid != task.split.grid for stage in found):
        raise ConfigError(f"training.resolutions: {tied} is tied to one grid; train without it, or on one grid")
    return Stages(found, source)
