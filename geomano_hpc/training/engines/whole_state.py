"""The state of an engine whose every rank holds the whole model and optimiser: plain torch, and DeepSpeed at ZeRO 0."""

import json
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from geomano_hpc.config import TrainingConfig
from geomano_hpc.errors import ConfigError, in_one_line
from geomano_hpc.training.engines.engine import EngineState
from geomano_hpc.training.engines.optimizer_states import joined, parted
from geomano_hpc.training.optimizers import make_optimizer
from geomano_hpc.training.schedules import Schedule


def whole_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}


def whole_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule, loss_scale: dict[str, Any]
) -> EngineState:
    kept = {name: optimizer.state.get(parameter) or {} for name, parameter in model.named_parameters()}
    moments, numbers = parted(kept)
    record = {"optimizer": numbers, "schedule": schedule.record(), "loss_scale": loss_scale}
    return EngineState(whole_weights(model), moments, record)


def load_whole_state(
    state: EngineState, model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule
) -> None:
    model.load_state_dict(state.weights)
    states = joined(state)
    steps_on_device = any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
    for name, parameter in model.named_parameters():
        if name in states:
            optimizer.state[parameter] = {
                # As torch does: the count of steps stays on the CPU, where reading it costs nothing.
                key: value.to(parameter.device)
                if _is_moment(key, value) or (key == "step" and steps_on_device)
                else value
                for key, value in states[name].items()
            }
    schedule.restore(state.record["schedule"])


def _is_moment(key: str, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and key != "step"


def check_goes_on(config: TrainingConfig) -> None:
    """Before anything is made: optimiser and schedule take some steps, and go on from a saved state as without it."""
    stopped, undisturbed = _Small(config), _Small(config)
    stopped.take_steps(1, 3)
    state = whole_state(stopped.model, stopped.optimizer, stopped.schedule, {})
    state = replace(state, record=json.loads(json.dumps(state.record)))
    other = _Small(config)
    load_whole_state(state, other.model, other.optimizer, other.schedule)
    other.take_steps(4, 6)
    undisturbed.take_steps(1, 6)
    pairs = zip(other.model.parameters(), undisturbed.model.parameters(), strict=True)
    if not all(torch.allclose(*pair, rtol=0.0, atol=0.0, equal_nan=True) for pair in pairs):  # lr may be far too large
        raise ConfigError(
            f"training.optimizer {config.optimizer}: does not go on from a checkpoint as if nothing had stopped it; a "
            "checkpoint has its states of each parameter and the numbers of its groups, and nothing else that it keeps"
        )


class _Small:
    """A layer with gradients that somebody made up."""

    def __init__(self, config: TrainingConfig) -> None:
        self.model = nn.Linear(4, 3)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.linspace(-1.0, 2.0, parameter.numel()).reshape(parameter.shape))
        self.optimizer = make_optimizer(self.model.parameters(), config)
        self.scheduler, self.schedule = config.scheduler, Schedule(self.optimizer, config, total_steps=1000)

    def take_steps(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            for parameter in self.model.parameters():
                parameter.grad = (7 * step * parameter.detach()).sin()
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(step)  # as in a training
                self.optimizer.step()
            try:
                self.schedule.step()
            except Exception as error:
                raise ConfigError(f"training.scheduler {self.scheduler}: step() fails: {in_one_line(error)}") from error
