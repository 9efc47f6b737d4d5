"""What training repeats, without data, engine, ranks, metrics or checkpoints. Axes: B batch, H x W grid, C channels."""

from dataclasses import dataclass

import torch
from torch import nn

from geomano_hpc.config import ModelConfig
from geomano_hpc.models import build_model
from geomano_hpc.training.losses import gradient_loss, relative_l2


@dataclass(frozen=True)
class BareStep:
    """One call of a model on a batch of noise and what belongs to it."""

    model: nn.Module
    input_BHWC: torch.Tensor
    target_BHWC: torch.Tensor
    gradient_weight: float
    optimizer: torch.optim.Optimizer

    @staticmethod
    def of(
        config: ModelConfig,
        batch: int,
        grid: tuple[int, int],
        channels: tuple[int, int],
        gradient_weight: float,
        device: torch.device | str = "cpu",
    ) -> "BareStep":
        """`channels` of the input and of the target."""
        torch.manual_seed(0)
        model = build_model(config, *channels, grid).to(device)
        given, wanted = (torch.randn(batch, *grid, count).to(device) for count in channels)
        return BareStep(model, given, wanted, gradient_weight, torch.optim.AdamW(model.parameters(), lr=1e-4))

    def train(self) -> None:
        prediction = self.model(self.input_BHWC)
        loss = relative_l2(prediction, self.target_BHWC)
        if self.gradient_weight:
            loss = loss + self.gradient_weight * gradient_loss(prediction, self.target_BHWC)
        loss.sum().backward()

    def update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()
        self.clear()

    def clear(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def infer(self) -> None:
        self.model(self.input_BHWC)
