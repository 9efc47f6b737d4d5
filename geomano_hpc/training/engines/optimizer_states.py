"""What any optimiser keeps for each parameter, by name: tensors for a checkpoint's file, other values for its JSON."""

from typing import Any

import torch

from geomano_hpc.training.engines.engine import EngineState

States = dict[str, dict[str, Any]]  # parameter -> state -> value


def parted(states: States) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """`<parameter>.<state>` -> tensor, on the CPU, and the same for all that is no tensor."""
    every = {f"{name}.{key}": value for name, kept in states.items() for key, value in kept.items()}
    tensors = {path: value for path, value in every.items() if isinstance(value, torch.Tensor)}
    moments = {path: tensor.detach().cpu().contiguous() for path, tensor in tensors.items()}
    return moments, {path: value for path, value in every.items() if path not in tensors}


def joined(state: EngineState) -> States:
    """The other way round."""
    states: States = {}
    for path, value in {**state.moments, **state.record.get("optimizer", {})}.items():
        name, _, key = path.rpartition(".")
        states.setdefault(name, {})[key] = value
    if "adam_steps" in state.record:  # of an older version, which knew AdamW only
        for kept in states.values():
            kept["step"] = torch.tensor(state.record["adam_steps"], dtype=torch.float32)
    return states


def of_each_number(states: States) -> list[str]:
    """The states that hold a number for each number of a parameter; the others, such as steps, are one for all.

    In alphabetical order, never that of a set or of a state that was loaded: ranks gather them one after the other, and
    must all mean the same one.
    """
    every = (item for kept in states.values() for item in kept.items())
    return sorted({key for key, value in every if isinstance(value, torch.Tensor) and value.ndim})
