"""Optimisers by name: torch's own, Lion, and the user's by package.module:name. Names stand in config/choices.py."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from geomano_hpc.config import TrainingConfig
from geomano_hpc.config.by_name import resolve_callable
from geomano_hpc.config.choices import OPTIMIZERS, place_of
from geomano_hpc.errors import ConfigError, in_one_line

_CALLED_WITH = "(parameters, lr=, weight_decay=, **training.optimizer_options)"


def make_optimizer(parameters: Iterable[nn.Parameter], config: TrainingConfig) -> torch.optim.Optimizer:
    given = list(parameters)
    keywords = {"lr": config.lr, "weight_decay": config.weight_decay, **config.optimizer_options}
    what = f"training.optimizer {config.optimizer}"
    make = resolve_callable(place_of(config.optimizer, OPTIMIZERS), what, _CALLED_WITH, given, **keywords)
    try:
        optimizer = make(given, **keywords)
    except Exception as error:
        raise ConfigError(f"{what}: {in_one_line(error)}") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"{what}: gave a {type(optimizer).__name__}, expected a torch.optim.Optimizer")
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if held != {id(parameter) for parameter in given}:
        raise ConfigError(f"{what}: holds {len(held)} of the {len(given)} parameters; it must step all of them")
    return optimizer


def check_optimizer(config: TrainingConfig) -> None:
    """Before anything is made: step two small parameters, and see that the states can be saved, and parted for ZeRO."""
    what = f"training.optimizer {config.optimizer}"
    optimizer, parameters = _stepped((3, 4), (4,), config=config)
    for key, states in optimizer.state.items():
        if not any(key is parameter for parameter in parameters):
            raise ConfigError(
                f"{what}: keeps the state {str(key)!r} for no parameter; a checkpoint has only those of parameters"
            )
        for name, value in states.items():
            plain = value is None or isinstance(value, torch.Tensor | bool | int | float | str)
            if not plain or "." in str(name):
                raise ConfigError(
                    f"{what}: keeps {name!r} ({type(value).__name__}) for each parameter; only tensors and numbers, "
                    "under names without a dot, can be saved in a checkpoint"
                )
    if not config.zero:
        return
    advice = f"training.zero={config.zero} parts it over the ranks: set training.zero=0"
    if make_optimizer([nn.Parameter(torch.ones(2))], config).state:
        raise ConfigError(f"{what}: keeps states from before its first step, which DeepSpeed does not part; {advice}")
    # Matrices with matrices and vectors with vectors: an optimiser may have groups for them.
    cut: tuple[list[tuple[int, ...]], ...] = ([(4, 4), (2, 4), (2, 4)], [(16,), (12,), (4,)])
    for whole, *parts in cut:
        (one,), several = (_stepped(*shapes, config=config)[1] for shapes in ([whole], parts))
        joined = torch.cat([parameter.detach().flatten() for parameter in several])
        if not torch.allclose(one.detach().flatten(), joined, rtol=1e-5, atol=0.0):
            raise ConfigError(f"{what}: does not treat each number of a parameter alone, and {advice}")


def _stepped(*shapes: tuple[int, ...], config: TrainingConfig) -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
    """Parameters of these shapes after three steps; one after the other they hold the same numbers for any shapes."""
    sizes = [math.prod(shape) for shape in shapes]
    numbers = torch.linspace(-1.0, 2.0, sum(sizes))
    parameters = [
        nn.Parameter(part.reshape(shape).clone()) for part, shape in zip(numbers.split(sizes), shapes, strict=True)
    ]
    optimizer = make_optimizer(parameters, config)
    try:
        for step in range(3):
            for parameter, part in zip(parameters, (numbers * 7).sin().split(sizes), strict=True):
                parameter.grad = part.reshape(parameter.shape) * (step + 1)
            optimizer.step()
    except Exception as error:
        raise ConfigError(f"training.optimizer {config.optimizer}: step() fails: {in_one_line(error)}") from error
    return optimizer, parameters


class Lion(torch.optim.Optimizer):
    """Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023), algorithm 2; torch has none of its own.

    The update is the sign of beta1 * m + (1 - beta1) * g, with decoupled weight decay; m then moves by beta2. Its
    authors advise a learning rate 3 to 10 times smaller than AdamW's, and a weight decay as much larger.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        if not all(0.0 <= beta < 1.0 for beta in betas) or len(betas) != 2:
            raise ValueError(f"betas {betas} must be two numbers from 0 to below 1")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lr, (beta1, beta2), decay = group["lr"], group["betas"], group["weight_decay"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                average = state["exp_avg"]
                update = average.lerp(parameter.grad, 1 - beta1).sign_()
                parameter.mul_(1 - lr * decay).add_(update, alpha=-lr)
                average.lerp_(parameter.grad, 1 - beta2)
        return loss
