"""The parts of a training as plain objects: data, tasks, model, engine and scan backend, built once in this order."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from geomano_hpc.config import Recipe
from geomano_hpc.config.choices import LOSSES
from geomano_hpc.data import Split, load_splits
from geomano_hpc.data_prep.store import Store, open_store
from geomano_hpc.errors import ConfigError
from geomano_hpc.kernels import BackendStatus, ready_backend
from geomano_hpc.models import build_model, count_parameters
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.engines.engine import Engine, pick_device, start_engine
from geomano_hpc.training.engines.heap import keep_freed_memory
from geomano_hpc.training.engines.whole_state import check_goes_on
from geomano_hpc.training.loggers.logger import check_loggers
from geomano_hpc.training.losses import make_loss
from geomano_hpc.training.optimizers import check_optimizer
from geomano_hpc.training.rollouts import as_keyed, increments_of
from geomano_hpc.training.schedules import check_scheduler
from geomano_hpc.training.stages import Stages, stages_of
from geomano_hpc.training.tasks import Task


@dataclass(frozen=True)
class Setup:
    """What a training works on. Nothing of it is read from, or written to, the run folder."""

    recipe: Recipe
    ranks: Ranks
    store: Store
    data_loading: dict[str, Any]  # what was chosen and from which numbers, for environment.json
    stages: Stages  # of the training split: on one grid, or from coarse to fine
    test_task: Task
    validation_task: Task | None  # of a store that has such a split
    backend: BackendStatus | None  # of the scan; None for a model without one
    engine: Engine  # holds the model
    parameters: int
    total_steps: int  # of the optimiser

    @property
    def task(self) -> Task:
        """Of the training split as it is stored."""
        return self.stages.own

    @property
    def chooses_best(self) -> bool:
        """On the validation split; without one nothing is chosen, and the result is that of the last epoch."""
        return self.validation_task is not None

    @property
    def judge(self) -> Task:
        """What an epoch is judged on."""
        return self.validation_task or self.test_task

    @property
    def judged_split(self) -> str:
        return "validation" if self.chooses_best else "test"


def check_parts(recipe: Recipe) -> None:
    """What the recipe names is there and fits, before a folder or data is made."""
    make_loss(recipe.loss)
    check_optimizer(recipe.training)
    check_scheduler(recipe.training)
    check_goes_on(recipe.training)
    check_loggers(recipe.training.loggers)


def set_up(recipe: Recipe, ranks: Ranks) -> Setup:
    """Every rank calls it, after the data is there. The seed decides the initial weights."""
    store = open_store(recipe.data.store)
    loaded = load_splits(store, recipe.data)
    loss, precision = make_loss(recipe.loss), recipe.compute.precision
    train_split = loaded.splits["train"]
    check_trainable(train_split, recipe)
    keyed = as_keyed(train_split.signature, recipe)
    if recipe.rollout.target == "increment":
        keyed = replace(keyed, increments=increments_of(replace(train_split, signature=keyed), recipe.rollout))
    tasks = {
        name: Task(
            replace(split, signature=keyed),
            recipe.loss.gradient_weight,
            precision,
            loss,
            loss_by_field=recipe.loss.name in LOSSES,
            rollout_keys=recipe.rollout,
        )
        for name, split in loaded.splits.items()
    }
    train_split = tasks["train"].split
    stages = stages_of(recipe, tasks["train"], store)
    backend = scan_backend(recipe, ranks)
    if not torch.cuda.is_available():
        keep_freed_memory()
    torch.manual_seed(recipe.training.seed)
    channels = (train_split.in_channels, train_split.out_channels)
    model = build_model(recipe.model, *channels, train_split.plane, recipe.compute)
    stages.place(model, stages.own)
    parameters = count_parameters(model)  # before ZeRO 3 parts them
    total_steps = recipe.training.epochs * tasks["train"].steps_of_epoch(recipe.training.batch_size)
    engine = start_engine(model, recipe.training, total_steps, ranks, precision)
    judged = (tasks["test"], tasks.get("validation"))
    return Setup(recipe, ranks, store, loaded.record, stages, *judged, backend, engine, parameters, total_steps)


def check_trainable(split: Split, recipe: Recipe) -> None:
    """What the data is must go with what the recipe asks for."""
    if len(split.grid) > 2:
        points = " x ".join(map(str, split.grid))
        raise ConfigError(
            f"{recipe.data.store}: holds volumes ({points} points), and no model here takes them yet; take planes of "
            "them"
        )
    recipe.model.check_grid(split.plane)


def scan_backend(recipe: Recipe, ranks: Ranks) -> BackendStatus | None:
    """The backend of the scan, compiled and loaded, on a GPU with the self-test's verdict on this rank's own; None for
    a model without a scan."""
    backend = recipe.model.backend()
    if backend is None:
        return None
    pick_device(ranks)
    return ready_backend(backend)
