"""What a model is trained and judged on: steady problems and rollouts. All losses are in physical units.

Several fields are judged one by one, and their errors averaged: no unit of a field weighs more than that of another.
Axes: B batch, H x W grid, C channels (the fields of each frame, frame by frame), T frames, F fields.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from geomano_hpc.config import RolloutConfig
from geomano_hpc.data import Batch, Signature, Split
from geomano_hpc.training.losses import LossOfEach, gradient_loss, mse, of_each, relative_l2
from geomano_hpc.training.rollouts import USUAL, Rollout, Share

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
    loss_by_field: bool = True  # False for a loss of the user's, which gets all fields together
    rollout_keys: RolloutConfig = USUAL

    @property
    def signature(self) -> Signature:
        return self.split.signature

    @property
    def rollout(self) -> Rollout:
        return Rollout(self.signature, self.rollout_keys)

    def steps_of_epoch(self, batch_size: int) -> int:
        """Of the optimiser."""
        return -(-len(self.split) // batch_size) * self.steps_of_batch

    @property
    def steps_of_batch(self) -> int:
        return len(self.rollout.shares) if self.signature.is_rollout else 1

    def loss_parts(
        self, model: Network, samples: Samples, device: torch.device, share: Share | None = None
    ) -> LossParts:
        """What is trained on, summed over the samples; over the steps too, in a rollout, or over some of them."""
        input_BHWC, target_BHWC = self._fields(samples, device)
        if not self.signature.is_rollout:
            return self._losses([self.step(model, input_BHWC)], [target_BHWC])
        given, context = self._parted(input_BHWC)
        return self._losses(*self.rollout.windows(partial(self.step, model), given, target_BHWC, context, share))

    @torch.no_grad()
    def predict(self, model: Network, samples: Samples, device: torch.device) -> torch.Tensor:
        """The prediction for the whole target [B, H, W, C]; a rollout feeds on its own frames."""
        input_BHWC, _ = self._fields(samples, device)
        return self.roll_out(model, input_BHWC, self.signature.frames_out)

    @torch.no_grad()
    def roll_out(self, model: Network, input_BHWC: torch.Tensor, frames: int) -> torch.Tensor:
        """So many frames from an input in physical units; a steady problem has its whole target in one call."""
        if not self.signature.is_rollout:
            return self.step(model, input_BHWC)
        known = self.signature
        given, context = self._parted(input_BHWC)
        found = self.rollout.go_on(partial(self.step, model), given, context, -(-frames // known.step_frames))
        return found[..., known.window_channels : known.window_channels + frames * len(known.targets)]

    def _parted(self, input_BHWC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The given frames of a rollout, and what is the same in every step."""
        if not self.signature.context:
            return input_BHWC, None
        window = self.signature.window_channels
        return input_BHWC[..., :window], input_BHWC[..., window:]

    def errors(self, model: Network, samples: Samples, device: torch.device) -> torch.Tensor:
        """Relative L2 of each sample [B], over all frames of a rollout together, averaged over the fields."""
        return self.field_errors(model, samples, device)[..., 0].mean(dim=1)

    def field_errors(self, model: Network, samples: Samples, device: torch.device) -> torch.Tensor:
        """[B, F, 1 + T]: of each field the relative L2 over all frames together, then of each of the T frames."""
        batch = samples if isinstance(samples, Batch) else self.split.batch(samples)
        predicted_BHWC = self.predict(model, batch, device)
        _, target_BHWC = batch.to(device)
        found = []
        for one, other in self._by_field(predicted_BHWC, target_BHWC):
            frames = zip(one.split(1, dim=-1), other.split(1, dim=-1), strict=True)
            found.append(torch.stack([relative_l2(one, other), *(relative_l2(p, t) for p, t in frames)], dim=1))
        return torch.stack(found, dim=1)

    def _fields(self, samples: Samples, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        return (samples if isinstance(samples, Batch) else self.split.batch(samples)).to(device)

    def step(self, model: Network, input_BHWC: torch.Tensor) -> torch.Tensor:
        """One call of the model, under autocast where the precision is not float32; losses are always in float32. In a
        rollout from the frames that it sees to the next ones, whatever its output is."""
        lowered = self.precision != "float32"
        dtype = getattr(torch, self.precision)
        with torch.autocast(input_BHWC.device.type, dtype=dtype) if lowered else contextlib.nullcontext():
            output = model(self.signature.seen_normaliser.encode(input_BHWC))
        output = output.float() if lowered else output
        if self.signature.is_rollout:
            return self.rollout.frames(output, input_BHWC)
        return self.signature.step_normaliser.decode(output)

    def _by_field(self, *fields_BHWC: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        """Of each field its frames [B, H, W, T], in each of the tensors."""
        names = self.signature.targets
        if len(names) == 1:
            return [fields_BHWC]
        return [tuple(field[..., number :: len(names)] for field in fields_BHWC) for number in range(len(names))]

    def _mean_over_fields(self, loss: LossOfEach, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """[B]"""
        found = [loss(*pair) for pair in self._by_field(one, other)]
        return found[0] if len(found) == 1 else torch.stack(found).mean(dim=0)

    def _named_loss(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if not self.loss_by_field or len(self.signature.targets) == 1:
            return of_each(self.loss, one, other)
        if self.loss is mse:  # in deviations of each field: squares of other units do not add up
            std = self.signature.step_normaliser.std
            scale = one.new_tensor(std[: one.shape[-1]]) if isinstance(std, tuple) else std
            one, other = one / scale, other / scale
        return self._mean_over_fields(lambda p, t: of_each(self.loss, p, t), one, other)

    def _losses(self, predicted: Sequence[torch.Tensor], target: Sequence[torch.Tensor]) -> LossParts:
        pairs = list(zip(predicted, target, strict=True))
        named = torch.stack([self._named_loss(one, other).sum() for one, other in pairs]).sum()
        relative = named
        if self.loss is not relative_l2:
            with torch.no_grad():
                found = [self._mean_over_fields(relative_l2, one, other).sum() for one, other in pairs]
                relative = torch.stack(found).sum()
        if not self.gradient_weight:
            return LossParts(named, None, 0.0, relative)
        of_gradients = partial(gradient_loss, boundary=self.signature.boundary)
        found = [self._mean_over_fields(of_gradients, one, other).sum() for one, other in pairs]
        return LossParts(named, torch.stack(found).sum(), self.gradient_weight, relative)
