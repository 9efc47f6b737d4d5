"""The DeepSpeed engine around a model: AdamW, OneCycleLR stepped per batch, gradient clipping, gradients over ranks."""

import logging
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from geomano_hpc.config import TrainingConfig
from geomano_hpc.training.ranks import Ranks


@dataclass
class Engine:
    """What the loop needs of DeepSpeed."""

    deepspeed: Any
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    ranks: Ranks
    device: torch.device

    def step(self, summed_loss: torch.Tensor) -> None:
        """One optimiser and scheduler step. DeepSpeed averages over ranks; the benchmark's loss is a sum."""
        self.deepspeed.backward(summed_loss * self.ranks.world_size)
        self.deepspeed.step()

    def sum_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        if self.ranks.world_size > 1:
            torch.distributed.all_reduce(values)
        return values


def pick_device(ranks: Ranks) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # A launcher may show each rank all GPUs of the node, or only its own.
    device = torch.device("cuda", ranks.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def start_engine(model: nn.Module, config: TrainingConfig, total_steps: int, ranks: Ranks) -> Engine:
    device = pick_device(ranks)
    deepspeed = import_deepspeed(device)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=config.lr, total_steps=total_steps)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=scheduler,
        config={
            # The loop makes its own batches; DeepSpeed only has to know that nothing is accumulated.
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": config.clip or 0.0,
            "zero_optimization": {"stage": 0},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 10**9,
        },
    )
    return Engine(engine, model, optimizer, scheduler, ranks, device)


def import_deepspeed(device: torch.device) -> Any:
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    import deepspeed
    import deepspeed.ops

    if device.type == "cpu":
        # Plain gloo: DeepSpeed's shared-memory operator would be compiled on first use, which takes minutes.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed
