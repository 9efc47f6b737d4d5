"""What a model is trained and judged on: steady problems and rollouts. All losses are in physical units.

Axes: B batch, H x W grid, C channels (frames, for a rollout).
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from geomano_hpc.data import Batch, Split
from geomano_hpc.training.losses import LossOfEach, gradient_loss, of_each, relative_l2

Samples = torch.Tensor | Batch  # numbers of samples of the split, or samples that are loaded already
Network = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class LossParts:
    """Sums over the samples of a batch: the loss that the recipe names (the paper's is L_rL2), and L_g if it counts."""

    named: torch.Tensor
    gradient: torch.Tensor | None
    gradient_weight: float
    relative_l2: torch.Tensor  # for the records, whatever the loss is

    @property
    def total(self) -> torch.Tensor:
        """L_rL2 + gradient_weight * L_g."""
        return self.named if self.gradient is None else self.named + self.gradient_weight * self.gradient


@dataclass(frozen=True)
class Task:
    """How a split's samples become a training loss and a prediction."""

    split: Split
    gradient_weight: float
    precision: str = "float32"
    loss: LossOfEach = relative_l2

    def loss_parts(self, model: Network, samples: Samples, device: torch.device) -> LossParts:
        """What is trained on, summed over the samples; over the frames too, in a rollout."""
        input_BHWC, target_BHWC = self._fields(samples, device)
        if self.split.kind == "steady":
            return self._losses([self.step(model, input_BHWC)], [target_BHWC])
        # Teacher-forced: each frame is predicted from the true frames before it.
        frames = torch.cat([input_BHWC, target_BHWC], dim=-1)
        window = input_BHWC.shape[-1]
        predicted = [self.step(model, frames[..., t : t + window]) for t in range(target_BHWC.shape[-1])]
        return self._losses(predicted, list(target_BHWC.split(1, dim=-1)))

    @torch.no_grad()
    def predict(self, model: Network, samples: Samples, device: torch.device) -> torch.Tensor:
        """The prediction for the whole target [B, H, W, C]; a rollout feeds on its own frames."""
        input_BHWC, target_BHWC = self._fields(samples, device)
        return self.roll_out(model, input_BHWC, target_BHWC.shape[-1])

    @torch.no_grad()
    def roll_out(self, model: Network, input_BHWC: torch.Tensor, frames: int) -> torch.Tensor:
        """So many frames from an input in physical units; a steady problem has its whole target in one call."""
        if self.split.kind == "steady":
            return self.step(model, input_BHWC)
        seen = input_BHWC
        window = input_BHWC.shape[-1]
        for _ in range(frames):
            seen = torch.cat([seen, self.step(model, seen[..., -window:])], dim=-1)
        return seen[..., window:]

    def errors(self, model: Network, samples: Samples, device: torch.device) -> torch.Tensor:
        """Relative L2 of each sample [B], over all frames of a rollout together."""
        _, target_BHWC = self._fields(samples, device)
        return relative_l2(self.predict(model, samples, device), target_BHWC)

    def frame_errors(self, model: Network, samples: Samples, device: torch.device) -> torch.Tensor:
        """[B, 1 + T]: relative L2 of each sample over all frames together, then of each of the T frames."""
        _, target_BHWC = self._fields(samples, device)
        predicted_BHWC = self.predict(model, samples, device)
        frames = zip(predicted_BHWC.split(1, dim=-1), target_BHWC.split(1, dim=-1), strict=True)
        whole = relative_l2(predicted_BHWC, target_BHWC)
        return torch.stack([whole, *(relative_l2(one, other) for one, other in frames)], dim=1)

    def _fields(self, samples: Samples, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        return (samples if isinstance(samples, Batch) else self.split.batch(samples)).to(device)

    def step(self, model: Network, input_BHWC: torch.Tensor) -> torch.Tensor:
        """One call of the model, under autocast where the precision is not float32; losses are always in float32."""
        lowered = self.precision != "float32"
        dtype = getattr(torch, self.precision)
        with torch.autocast(input_BHWC.device.type, dtype=dtype) if lowered else contextlib.nullcontext():
            output = model(self.split.input_normaliser.encode(input_BHWC))
        return self.split.target_normaliser.decode(output.float() if lowered else output)

    def _losses(self, predicted: Sequence[torch.Tensor], target: Sequence[torch.Tensor]) -> LossParts:
        pairs = list(zip(predicted, target, strict=True))
        named = torch.stack([of_each(self.loss, one, other).sum() for one, other in pairs]).sum()
        relative = named
        if self.loss is not relative_l2:
            with torch.no_grad():
                relative = torch.stack([relative_l2(one, other).sum() for one, other in pairs]).sum()
        if not self.gradient_weight:
            return LossParts(named, None, 0.0, relative)
        gradient = torch.stack([gradient_loss(one, other).sum() for one, other in pairs]).sum()
        return LossParts(named, gradient, self.gradient_weight, relative)
