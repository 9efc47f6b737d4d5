"""What a model is trained and judged on: steady problems and rollouts. All losses are in physical units.

Axes: B batch, H x W grid, C channels (frames, for a rollout).
"""

from dataclasses import dataclass

import torch
from torch import nn

from geomano_hpc.data import Batch, Split
from geomano_hpc.training.losses import gradient_loss, relative_l2

Samples = torch.Tensor | Batch  # numbers of samples of the split, or samples that are loaded already


@dataclass(frozen=True)
class Task:
    """How a split's samples become a training loss and a prediction."""

    split: Split
    gradient_weight: float
    precision: str = "float32"

    def training_loss(self, model: nn.Module, samples: Samples, device: torch.device) -> torch.Tensor:
        """Sum over the samples of L_rL2 + gradient_weight * L_g; over the frames too, in a rollout."""
        input_BHWC, target_BHWC = self._fields(samples, device)
        if self.split.task == "steady":
            return self._loss(self._step(model, input_BHWC), target_BHWC)
        # Teacher-forced: each frame is predicted from the true frames before it.
        frames = torch.cat([input_BHWC, target_BHWC], dim=-1)
        window = input_BHWC.shape[-1]
        losses = [
            self._loss(self._step(model, frames[..., t : t + window]), frames[..., t + window : t + window + 1])
            for t in range(target_BHWC.shape[-1])
        ]
        return torch.stack(losses).sum()

    @torch.no_grad()
    def predict(self, model: nn.Module, samples: Samples, device: torch.device) -> torch.Tensor:
        """The prediction for the whole target [B, H, W, C]; a rollout feeds on its own frames."""
        input_BHWC, target_BHWC = self._fields(samples, device)
        if self.split.task == "steady":
            return self._step(model, input_BHWC)
        frames = input_BHWC
        window = input_BHWC.shape[-1]
        for _ in range(target_BHWC.shape[-1]):
            frames = torch.cat([frames, self._step(model, frames[..., -window:])], dim=-1)
        return frames[..., window:]

    def errors(self, model: nn.Module, samples: Samples, device: torch.device) -> torch.Tensor:
        """Relative L2 of each sample [B], over all frames of a rollout together."""
        _, target_BHWC = self._fields(samples, device)
        return relative_l2(self.predict(model, samples, device), target_BHWC)

    def _fields(self, samples: Samples, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        return (samples if isinstance(samples, Batch) else self.split.batch(samples)).to(device)

    def _step(self, model: nn.Module, input_BHWC: torch.Tensor) -> torch.Tensor:
        """One call of the model, under autocast where the precision is not float32; losses are always in float32."""
        lowered = self.precision != "float32"
        with torch.autocast(input_BHWC.device.type, dtype=torch.bfloat16, enabled=lowered):
            output = model(self.split.input_normaliser.encode(input_BHWC))
        return self.split.target_normaliser.decode(output.float() if lowered else output)

    def _loss(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = relative_l2(prediction, target)
        if self.gradient_weight:
            loss = loss + self.gradient_weight * gradient_loss(prediction, target)
        return loss.sum()
