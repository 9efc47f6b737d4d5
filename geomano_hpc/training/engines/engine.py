"""What the loop needs of an engine: gradients over ranks, clipped optimiser steps, and its whole state in one place.

Two engines do it: DeepSpeed (deepspeed.py) and plain torch (torch.py). Both step the same optimiser and schedule, in
float32, and give the same losses.
"""

import contextlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from geomano_hpc.config import TrainingConfig
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.optimizers import make_optimizer
from geomano_hpc.training.schedules import Schedule
from geomano_hpc.training.tasks import Network


@dataclass(frozen=True)
class EngineState:
    """Weights and optimiser of a training, whole: no trace of how many ranks it was parted over, or of the engine."""

    weights: dict[str, torch.Tensor]
    moments: dict[str, torch.Tensor]  # <parameter>.<state of the optimiser>; empty before the first step
    record: dict[str, Any]  # plain numbers: the optimiser's other states, the schedule, the loss scale of float16


class Engine(ABC):
    """Every method is called by every rank, in the same order."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig,
        total_steps: int,
        ranks: Ranks,
        device: torch.device,
    ) -> None:
        self.model, self.ranks, self.device = model, ranks, device
        self.optimizer = make_optimizer(model.parameters(), config)
        self.schedule = Schedule(self.optimizer, config, total_steps)
        parameters = dict(model.named_parameters())
        self._saved_buffers = [name for name in model.state_dict() if name not in parameters]

    @property
    @abstractmethod
    def network(self) -> Network:
        """The model as the training calls it."""

    @property
    def evaluation_network(self) -> Network:
        """The model as evaluations call it."""
        return self.model

    def part(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Forward and backward of a part of a batch happen in it."""
        return contextlib.nullcontext()

    @abstractmethod
    def backward(self, summed_loss: torch.Tensor, last: bool) -> None:
        """Add the gradient of a sum over samples; `last` of the parts of a batch brings the gradients together."""

    @abstractmethod
    def _apply(self) -> float:
        """Clip and step the optimiser unless the gradient is not finite. Returns its norm before clipping."""

    def step(self) -> float:
        """One optimiser and scheduler step. Returns the gradient's norm; if that is not finite, nothing has changed.

        Buffers that a model learns, such as the means of a batch norm, are those of rank 0 from here on: that is what
        is evaluated and saved.
        """
        norm = self._apply()
        if math.isfinite(norm):
            self.schedule.step()
        if self.ranks.world_size > 1 and self._saved_buffers:
            buffers = dict(self.model.named_buffers())
            for name in self._saved_buffers:
                torch.distributed.broadcast(buffers[name], src=0)
        return norm

    @abstractmethod
    def weights(self) -> dict[str, torch.Tensor]:
        """The whole weights on the CPU, on rank 0 at least."""

    @abstractmethod
    def replace_weights(self, weights: dict[str, torch.Tensor]) -> None:
        """Put whole weights into the model, to judge them: the training is over, its optimiser is left as it is."""

    @abstractmethod
    def state(self) -> EngineState: ...

    @abstractmethod
    def load(self, state: EngineState) -> None: ...

    def sum_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        if self.ranks.world_size > 1:
            torch.distributed.all_reduce(values)
        return values


def clip_whole_gradients(model: nn.Module, largest: float | None) -> float:
    """The norm of the gradient, which is clipped at `largest`, or removed where it is not finite: no step follows."""
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    found = float(norm)
    if not math.isfinite(found):
        model.zero_grad(set_to_none=True)
    elif largest is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, largest, norm)
    return found


def pick_device(ranks: Ranks) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # A launcher may show each rank all GPUs of the node, or only its own.
    device = torch.device("cuda", ranks.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def start_engine(
    model: nn.Module, config: TrainingConfig, total_steps: int, ranks: Ranks, precision: str = "float32"
) -> Engine:
    device = pick_device(ranks)
    model.to(device)
    if config.engine == "torch":
        from geomano_hpc.training.engines.torch import TorchEngine

        return TorchEngine(model, config, total_steps, ranks, device, precision)
    from geomano_hpc.training.engines.deepspeed import DeepSpeedEngine

    return DeepSpeedEngine(model, config, total_steps, ranks, device, precision)
