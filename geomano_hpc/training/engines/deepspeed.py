"""The DeepSpeed engine: ZeRO 0 to 3, with parameters and optimiser in float32 at any precision of the computation."""

import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from geomano_hpc.config import TrainingConfig
from geomano_hpc.errors import BackendError
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.engines.engine import Engine, EngineState, clip_whole_gradients
from geomano_hpc.training.engines.optimizer_states import joined, of_each_number, parted
from geomano_hpc.training.engines.whole_state import load_whole_state, whole_state, whole_weights
from geomano_hpc.training.tasks import Network


class DeepSpeedEngine(Engine):
    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig,
        total_steps: int,
        ranks: Ranks,
        device: torch.device,
        precision: str,
    ) -> None:
        deepspeed = import_deepspeed(device)
        super().__init__(model, config, total_steps, ranks, device)
        self._zero, self._parts, self._clip = config.zero, config.accumulate, config.clip
        settings = merged(deepspeed_config(config, precision), config.deepspeed)
        forget_autocast()
        self._engine, *_ = deepspeed.initialize(model=model, optimizer=self.optimizer, config=settings)
        self._safe = deepspeed.utils

    @property
    def network(self) -> Network:
        return self._engine

    @property
    def evaluation_network(self) -> Network:
        """At ZeRO 3 every rank holds a part of each layer: only DeepSpeed can call the model."""
        return self._engine if self._zero == 3 else self.model

    def backward(self, summed_loss: torch.Tensor, last: bool) -> None:
        # DeepSpeed averages over ranks and over the parts of a batch; the benchmark's loss is a sum.
        self._engine.backward(summed_loss * (self.ranks.world_size * self._parts))
        if not last:
            self._engine.step()  # counts the part

    def _apply(self) -> float:
        if self._zero:
            self._engine.step()
            norm = float(self._engine.get_global_grad_norm())
            return norm if self._engine.was_step_applied() else math.inf
        if self._loss_scaler is not None:
            self._loss_scaler.unscale_(self.optimizer)
        norm = clip_whole_gradients(self.model, self._clip)
        self._engine.step()
        return norm

    @property
    def _loss_scaler(self) -> Any:
        return self._engine.torch_autocast_z0_gradscaler

    def weights(self) -> dict[str, torch.Tensor]:
        if not self._zero:
            return whole_weights(self.model)
        buffers = {name: tensor for name, tensor in self.model.state_dict().items() if name not in self._parameters()}
        gathered = {name: self._safe.safe_get_full_fp32_param(p) for name, p in self._parameters().items()}
        return {name: tensor.detach().cpu().clone() for name, tensor in {**gathered, **buffers}.items()}

    def replace_weights(self, weights: dict[str, torch.Tensor]) -> None:
        if self._zero:
            self._load_weights(weights, self._engine.optimizer)
        else:
            self.model.load_state_dict(weights)

    def state(self) -> EngineState:
        if not self._zero:
            scale = self._loss_scaler.state_dict() if self._loss_scaler is not None else {}
            return whole_state(self.model, self.optimizer, self.schedule, scale)
        if self._zero < 3:
            self._link_states()
        # A flat part holds the numbers of many parameters, and states that are one for all of them, such as steps.
        flat: dict[str, Any] = next(iter(self.optimizer.state.values()), {})
        parts = of_each_number({"": flat})
        states = {}
        for name, parameter in self._parameters().items():
            whole = {key: self._safe.safe_get_full_optimizer_state(parameter, key) for key in parts}
            states[name] = {**whole, **{key: deepcopy(value) for key, value in flat.items() if key not in parts}}
        moments, numbers = parted(states)
        record = {"optimizer": numbers, "schedule": self.schedule.record(), "loss_scale": {}}
        return EngineState(self.weights(), moments, record)

    def load(self, state: EngineState) -> None:
        if not self._zero:
            load_whole_state(state, self.model, self.optimizer, self.schedule)
            if self._loss_scaler is not None:
                self._loss_scaler.load_state_dict(state.record["loss_scale"])
            return
        zero = self._engine.optimizer
        self._load_weights(state.weights, zero)
        states = joined(state)
        parts = of_each_number(states)
        common = {key: value for kept in states.values() for key, value in kept.items() if key not in parts}
        if states:
            for flat in zero.fp32_partitioned_groups_flat if self._zero == 3 else zero.single_partition_of_fp32_groups:
                self.optimizer.state[flat] = {**{key: torch.zeros_like(flat) for key in parts}, **deepcopy(common)}
        if parts:
            if self._zero < 3:
                self._link_states()
            for name, parameter in self._parameters().items():
                for key in (key for key in parts if key in states[name]):
                    self._set_moment(parameter, states[name][key].to(self.device), key)
        self.schedule.restore(state.record["schedule"])

    def _link_states(self) -> None:
        """Tell the parameters of every group where their states are: DeepSpeed does it once, for the first group."""
        if self.optimizer.state:
            self._engine.optimizer._hp_optimizer_states_linked = False
            self._engine.optimizer._lazy_init_hp_params_optimizer_state()

    def _load_weights(self, weights: dict[str, torch.Tensor], zero: Any) -> None:
        if self._zero < 3:
            self.model.load_state_dict(weights)
        else:
            import deepspeed

            parameters = self._parameters()
            with deepspeed.zero.GatheredParameters(list(parameters.values()), modifier_rank=0), torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(weights[name])
                for name, buffer in self.model.named_buffers():  # every rank has them whole
                    if name in weights:
                        buffer.copy_(weights[name])
        zero.refresh_fp32_params()

    def _set_moment(self, parameter: nn.Parameter, whole: torch.Tensor, moment: str) -> None:
        if self._zero < 3:
            self._safe.safe_set_full_optimizer_state(parameter, whole, moment)
            return
        # DeepSpeed's own function for this fails where the last rank's part is shorter than the others'.
        size = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
        padded = torch.nn.functional.pad(whole.flatten(), (0, size * self.ranks.world_size - whole.numel()))
        part = padded[size * self.ranks.rank : size * (self.ranks.rank + 1)]
        self._safe.safe_set_local_optimizer_state(parameter, part, moment)

    def _parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.model.named_parameters())


def deepspeed_config(config: TrainingConfig, precision: str) -> dict[str, Any]:
    return {
        # The loop makes its own batches; DeepSpeed only has to know in how many parts they come.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": config.accumulate,
        # At ZeRO 0 the gradients are whole and we clip them as plain torch does: DeepSpeed keeps no norm there.
        "gradient_clipping": (config.clip or 0.0) if config.zero else 0.0,
        # The memory-efficient linear of ZeRO 3 replaces torch's for the whole process, and knows nothing of autocast.
        "zero_optimization": {"stage": config.zero, "memory_efficient_linear": False},
        "zero_allow_untested_optimizer": True,
        # Not bf16.enabled, which would keep A, dt and the moments of AdamW in bfloat16. No module is listed as safe for
        # lower precision: gradients are summed in float32 too.
        "torch_autocast": {
            "enabled": precision != "float32",
            "dtype": precision if precision != "float32" else "bfloat16",
            "lower_precision_safe_modules": [],
        },
        "steps_per_print": 10**9,
    }


def merged(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """`theirs` over `ours`, section by section."""
    both = {key: merged(ours[key], value) for key, value in theirs.items() if isinstance(ours.get(key), dict)}
    return {**ours, **theirs, **both}


def forget_autocast() -> None:
    """DeepSpeed remembers autocast for the whole process: after a run in float16, the next engine of the process would
    scale its loss too, and ZeRO clips gradients before they are scaled back."""
    from deepspeed.runtime import torch_autocast

    torch_autocast.TORCH_AUTOCAST_INITIALIZED = False
    torch_autocast.TORCH_AUTOCAST_DTYPE = None


def import_deepspeed(device: torch.device) -> Any:
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    try:
        with _without("mlflow"):  # its autotuner, which nothing here uses, would import all of MLflow
            import deepspeed
            import deepspeed.ops
    except ImportError as error:
        raise BackendError(
            f"DeepSpeed cannot be imported ({error}); install it, or set training.engine=torch"
        ) from error

    if device.type == "cpu":
        # Plain gloo: DeepSpeed's shared-memory operator would be compiled on first use, which takes minutes. The list
        # is set whole, since reading it makes DeepSpeed try out compilers for operators that nobody asked for.
        vars(deepspeed.ops)["__compatible_ops__"] = {"deepspeed_shm_comm": False}
    return deepspeed


@contextmanager
def _without(package: str) -> Iterator[None]:
    """As if the package were not installed, unless it is imported already."""
    hidden = package not in sys.modules
    if hidden:
        sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            del sys.modules[package]
