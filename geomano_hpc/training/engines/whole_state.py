"""The state of an engine whose every rank holds the whole model and optimiser: plain torch, and DeepSpeed at ZeRO 0."""

from typing import Any

import torch
from torch import nn

from geomano_hpc.training.engines.engine import MOMENTS, EngineState, Schedule


def whole_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}


def whole_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule, loss_scale: dict[str, Any]
) -> EngineState:
    moments: dict[str, torch.Tensor] = {}
    steps = 0.0
    for name, parameter in model.named_parameters():
        states = optimizer.state.get(parameter)
        if states:
            moments |= {f"{name}.{moment}": states[moment].detach().cpu().contiguous() for moment in MOMENTS}
            steps = float(states["step"])
    record = {"adam_steps": steps, "schedule": schedule.record(), "loss_scale": loss_scale}
    return EngineState(whole_weights(model), moments, record)


def load_whole_state(
    state: EngineState, model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule
) -> None:
    model.load_state_dict(state.weights)
    if state.moments:
        for name, parameter in model.named_parameters():
            optimizer.state[parameter] = {
                "step": torch.tensor(state.record["adam_steps"], dtype=torch.float32),
                **{moment: state.moments[f"{name}.{moment}"].to(parameter.device) for moment in MOMENTS},
            }
    schedule.restore(state.record["schedule"])
