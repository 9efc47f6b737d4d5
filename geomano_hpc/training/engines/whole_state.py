"""The state of an engine whose every rank holds the whole model and optimiser: plain torch, and DeepSpeed at ZeRO 0."""

from typing import Any

import torch
from torch import nn

from geomano_hpc.training.engines.engine import EngineState
from geomano_hpc.training.engines.optimizer_states import joined, parted
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
