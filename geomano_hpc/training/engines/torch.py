"""The engine of plain torch: DistributedDataParallel around the model, nothing to install besides."""

import contextlib
import math
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from geomano_hpc.config import TrainingConfig
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.engines.engine import Engine, EngineState, clip_whole_gradients
from geomano_hpc.training.engines.whole_state import load_whole_state, whole_state, whole_weights
from geomano_hpc.training.tasks import Network


class TorchEngine(Engine):
    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig,
        total_steps: int,
        ranks: Ranks,
        device: torch.device,
        precision: str,
    ) -> None:
        super().__init__(model, config, total_steps, ranks, device)
        self._clip = config.clip
        self._parallel: nn.Module = model
        if ranks.world_size > 1:
            # The gradient of a depthwise convolution comes in another layout, which costs nothing here.
            warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
            gpus = [device] if device.type == "cuda" else None
            self._parallel = DistributedDataParallel(model, gpus, broadcast_buffers=False, gradient_as_bucket_view=True)
        self._scaler = torch.amp.GradScaler(device.type, enabled=precision == "float16")

    @property
    def network(self) -> Network:
        return self._parallel

    def part(self, last: bool) -> contextlib.AbstractContextManager[None]:
        # Around the forward too: that is where DistributedDataParallel decides whether the backward sums over ranks.
        waits = isinstance(self._parallel, DistributedDataParallel) and not last
        return self._parallel.no_sync() if waits else contextlib.nullcontext()  # type: ignore[operator]

    def backward(self, summed_loss: torch.Tensor, last: bool) -> None:
        # DistributedDataParallel averages over ranks; the benchmark's loss is a sum.
        self._scaler.scale(summed_loss * self.ranks.world_size).backward()

    def _apply(self) -> float:
        self._scaler.unscale_(self.optimizer)
        norm = clip_whole_gradients(self.model, self._clip)
        if self._scaler.is_enabled() or math.isfinite(norm):  # some optimisers decay weights without a gradient, too
            self._scaler.step(self.optimizer)
        self._scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def weights(self) -> dict[str, torch.Tensor]:
        return whole_weights(self.model)

    def replace_weights(self, weights: dict[str, torch.Tensor]) -> None:
        self.model.load_state_dict(weights)

    def state(self) -> EngineState:
        scale: dict[str, Any] = self._scaler.state_dict()
        return whole_state(self.model, self.optimizer, self.schedule, scale)

    def load(self, state: EngineState) -> None:
        load_whole_state(state, self.model, self.optimizer, self.schedule)
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(state.record["loss_scale"])
