"""Learning rates over the steps of a training: schedules by name, or the user's. Names stand in config/choices.py."""

import inspect
import math
import warnings
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from geomano_hpc.config import TrainingConfig
from geomano_hpc.config.by_name import resolve_callable
from geomano_hpc.config.choices import SCHEDULERS, place_of
from geomano_hpc.errors import ConfigError, GeomanoError, in_one_line
from geomano_hpc.training.optimizers import make_optimizer

_CALLED_WITH = "(optimizer, total_steps, **training.scheduler_options)"


def one_cycle(optimizer: Optimizer, total_steps: int, warmup: float = 0.3, **options: Any) -> LRScheduler:
    """Torch's OneCycleLR, the benchmark's: up to training.lr, then down to next to nothing, both by a cosine.

    The momentum of the optimiser (the first beta of Adam and its kin) moves against it, where the optimiser has one.
    """
    defaults = optimizer.defaults
    options = {"cycle_momentum": bool(defaults.get("betas") or defaults.get("momentum")), **options}
    return OneCycleLR(optimizer, _peaks(optimizer), total_steps, pct_start=warmup, **options)


def cosine(optimizer: Optimizer, total_steps: int, warmup: float = 0.0, final: float = 0.0) -> LRScheduler:
    """Up to training.lr along a line, then down by half a cosine to `final` times training.lr."""
    rising = round(warmup * total_steps)

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        passed = min(1.0, (step - rising) / max(1, total_steps - rising))
        return final + (1.0 - final) * (1.0 + math.cos(math.pi * passed)) / 2.0

    return LambdaLR(optimizer, factor)


def constant(optimizer: Optimizer, total_steps: int, warmup: float = 0.0) -> LRScheduler:
    """Up to training.lr along a line, and there it stays."""
    rising = round(warmup * total_steps)
    return LambdaLR(optimizer, lambda step: (step + 1) / rising if step < rising else 1.0)


def _peaks(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


class Schedule:
    """A scheduler, stepped after each step of the optimiser. It goes on from a checkpoint by taking its steps again."""

    def __init__(self, optimizer: Optimizer, config: TrainingConfig, total_steps: int) -> None:
        self._optimizer, self._name, self._steps = optimizer, config.scheduler, 0
        self._scheduler = make_scheduler(optimizer, config, total_steps)

    @property
    def lr(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])

    def step(self) -> None:
        self._scheduler.step()
        self._steps += 1

    def record(self) -> dict[str, Any]:
        """With all numbers of the optimiser's groups: a scheduler moves some of them, some optimisers others."""
        return {"steps": self._steps, "groups": [_numbers(group) for group in self._optimizer.param_groups]}

    def restore(self, record: dict[str, Any]) -> None:
        """Of a fresh schedule. No scheduler's own state is trusted to survive JSON: its steps are taken again."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch expects a step of the optimiser before each
            while self._steps < record["steps"]:
                self.step()
        saved = record["groups"] if "groups" in record else [record["group"]]  # the latter in older checkpoints
        for group, numbers in zip(self._optimizer.param_groups, saved, strict=True):
            if not math.isclose(group["lr"], numbers["lr"], rel_tol=1e-6, abs_tol=1e-12):
                raise GeomanoError(
                    f"training.scheduler {self._name}: gives lr {group['lr']:g} after {self._steps} steps, but the "
                    f"checkpoint has {numbers['lr']:g}: it changed since the run was started; train in a new run folder"
                )
            tuples = {name: tuple(value) for name, value in numbers.items() if isinstance(value, list)}
            group.update({**numbers, **tuples})


def make_scheduler(optimizer: Optimizer, config: TrainingConfig, total_steps: int) -> Any:
    what = f"training.scheduler {config.scheduler}"
    keywords = dict(config.scheduler_options)
    if config.warmup is not None:
        keywords["warmup"] = config.warmup
    called_with = _CALLED_WITH if config.warmup is None else _CALLED_WITH.replace(", **", ", warmup=, **")
    reference = place_of(config.scheduler, SCHEDULERS)
    make = resolve_callable(reference, what, called_with, optimizer, total_steps, **keywords)
    try:
        scheduler = make(optimizer, total_steps, **keywords)
    except Exception as error:
        raise ConfigError(f"{what}: {in_one_line(error)}") from error
    try:
        inspect.signature(scheduler.step).bind()
    except (AttributeError, TypeError):
        raise ConfigError(
            f"{what}: gave a {type(scheduler).__name__}, expected a scheduler whose step() needs no arguments"
        ) from None
    return scheduler


def check_scheduler(config: TrainingConfig) -> None:
    """Before anything is made, with a number of steps that stands for any."""
    parameters = [nn.Parameter(torch.ones(shape)) for shape in ((3, 4), (4,))]
    make_scheduler(make_optimizer(parameters, config), config, total_steps=1000)


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    """What JSON can hold of a group: its settings, but not the parameters."""
    plain = bool | int | float | str | None
    return {
        name: list(value) if isinstance(value, tuple | list) else value
        for name, value in group.items()
        if isinstance(value, plain) or (isinstance(value, tuple | list) and name != "params" and _all(value, plain))
    }


def _all(values: Any, kind: Any) -> bool:
    return all(isinstance(value, kind) for value in values)
