"""Rollouts by the keys `rollout` of a recipe, whichever the model is: what it sees of the frames before it, what its
output means, and which steps it is trained on.

A trajectory is the given frames and those to be predicted, in one row. A window is what one call of the model predicts:
`training.step_frames` frames, the last of which may lie beyond the trajectory. Axes: B batch, H x W grid, C channels
(the fields of each frame, frame by frame).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from geomano_hpc.config import Recipe, RolloutConfig
from geomano_hpc.data import Normaliser, Signature, Split
from geomano_hpc.data_prep.conversion.statistics import combine, moments
from geomano_hpc.errors import ConfigError

Call = Callable[[torch.Tensor], torch.Tensor]  # what the model sees -> the next frames, both in physical units

USUAL = RolloutConfig()  # as the benchmark trains

_MOST_SAMPLES = 1024  # of which the deviation of increments is taken; they are streamed, perhaps
_NOISE = 0x6E6F697365  # sets the seeds of noise apart from all others


@dataclass(frozen=True)
class Share:
    """What one step of the optimiser takes of the rollouts of a batch."""

    number: int  # which of Rollout.shares
    seeds: Sequence[int] = ()  # of the noise on each sample


def seed_of_noise(seed: int, epoch: int, sample: int) -> int:
    """The same noise on a sample in all steps of an epoch, whichever rank, part of a batch or start of the run it is
    computed in."""
    return int(np.random.SeedSequence([seed, epoch, sample, 0, _NOISE]).generate_state(1, np.uint64)[0])


@dataclass(frozen=True)
class Rollout:
    known: Signature
    keys: RolloutConfig = USUAL  # what only a training asks for

    def seen(self, frames_BHWC: torch.Tensor, context_BHWC: torch.Tensor | None) -> torch.Tensor:
        """What the model sees after these frames: the last of them, and what is the same in every step."""
        last = frames_BHWC[..., -self.known.seen_frames * len(self.known.targets) :]
        return last if context_BHWC is None else torch.cat([last, context_BHWC], dim=-1)

    def frames(self, output_BHWC: torch.Tensor, seen_BHWC: torch.Tensor) -> torch.Tensor:
        """The model's output in physical units: the next frames, or what they add to the last one that it saw."""
        known = self.known
        if known.increments is None:
            return known.step_normaliser.decode(output_BHWC)
        fields = len(known.targets)
        last = seen_BHWC[..., (known.seen_frames - 1) * fields : known.seen_frames * fields]
        return torch.cat([last] * known.step_frames, dim=-1) + known.increments.decode(output_BHWC)

    def go_on(
        self, call: Call, frames_BHWC: torch.Tensor, context_BHWC: torch.Tensor | None, calls: int
    ) -> torch.Tensor:
        """The frames and those that so many calls of the model add, each from those before it."""
        for _ in range(calls):
            frames_BHWC = torch.cat([frames_BHWC, call(self.seen(frames_BHWC, context_BHWC))], dim=-1)
        return frames_BHWC

    @property
    def starts(self) -> list[int]:
        """The first frame of each window that is trained on."""
        known, first = self.known, self.known.frames_in
        if self.keys.pairs == "all":  # windows end where they do without it
            first = known.seen_frames + (known.frames_in - known.seen_frames) % known.step_frames
        return list(range(first, known.frames_in + known.frames_out, known.step_frames))

    @property
    def shares(self) -> list[list[int]]:
        """The same, for each step of the optimiser on a batch."""
        starts = self.starts
        size = self.keys.steps_per_window or len(starts)
        return [starts[first : first + size] for first in range(0, len(starts), size)]

    def part_of_rollout(self, number: int) -> float:
        """That a share is, by its windows."""
        return len(self.shares[number]) / len(self.starts)

    def windows(
        self,
        call: Call,
        given_BHWC: torch.Tensor,
        target_BHWC: torch.Tensor,
        context_BHWC: torch.Tensor | None,
        share: Share | None,
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The windows of a share, predicted from the true frames before them, and the truth; without a share those of
        the whole rollout, without noise."""
        known, fields = self.known, len(self.known.targets)
        frames = torch.cat([given_BHWC, target_BHWC], dim=-1)
        shown = self._noisy(frames, share.seeds) if share is not None and self.keys.noise else frames
        predicted, true = [], []
        for start in self.starts if share is None else self.shares[share.number]:
            own = min(self.keys.pushforward, self._room(start))
            before = shown[..., : (start - own * known.step_frames) * fields]
            with torch.no_grad():
                before = self.go_on(call, before, context_BHWC, own)
            true.append(frames[..., start * fields : (start + known.step_frames) * fields])
            step = call(self.seen(before, context_BHWC))
            predicted.append(step[..., : true[-1].shape[-1]])  # the last window may go beyond the frames there are
        return predicted, true

    def _room(self, start: int) -> int:
        """Windows before this one that the model could predict itself."""
        return (start - self.known.seen_frames) // self.known.step_frames

    def _noisy(self, frames_BHWC: torch.Tensor, seeds: Sequence[int]) -> torch.Tensor:
        """An increment adds to the frame with its noise, and the truth has none: the model learns to take it away."""
        shape = frames_BHWC.shape[1:]
        drawn = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        std = self.known.input_normaliser.std
        if isinstance(std, tuple):
            fields = len(self.known.targets)
            scale = frames_BHWC.new_tensor(std[:fields]).repeat(shape[-1] // fields)
        else:
            scale = frames_BHWC.new_tensor(std)
        return frames_BHWC + self.keys.noise * scale * torch.stack(drawn).to(frames_BHWC.device)

    def check(self, store: str) -> None:
        """The keys go with the frames of the data."""
        known, keys = self.known, self.keys
        if known.step_frames > known.frames_out:
            raise ConfigError(
                f"training.step_frames is {known.step_frames}, and a window of {store} has {known.frames_out} frames "
                "to predict"
            )
        if known.seen_frames > known.frames_in:
            raise ConfigError(
                f"rollout.frames_in is {known.seen_frames}, and a window of {store} has {known.frames_in} given frames"
            )
        windows = len(self.starts)
        if keys.pairs == "all" and self.starts[0] == known.frames_in:
            raise ConfigError(
                f"rollout.pairs all adds nothing where rollout.frames_in is {known.seen_frames}, "
                f"training.step_frames {known.step_frames}, and {store} gives {known.frames_in} frames: lower "
                "rollout.frames_in, or leave rollout.pairs out"
            )
        if keys.steps_per_window is not None and keys.steps_per_window > windows:
            raise ConfigError(
                f"rollout.steps_per_window is {keys.steps_per_window}, and a rollout of {store} is predicted in "
                f"{windows} windows"
            )
        room = self._room(self.starts[-1])
        if keys.pushforward > room:
            raise ConfigError(
                f"rollout.pushforward is {keys.pushforward}, and at most {room} steps go before the last one of a "
                f"rollout of {store}"
            )


def as_keyed(known: Signature, recipe: Recipe) -> Signature:
    """The data as the recipe's model sees it; an error if its keys do not go with it."""
    store, keys = str(recipe.data.store), recipe.rollout
    if not known.is_rollout:
        if recipe.training.step_frames > 1:
            raise ConfigError(f"training.step_frames is of rollouts; {store} holds a steady problem")
        said = ", ".join(f"rollout.{key}" for key in keys.model_dump(exclude_defaults=True))
        if said:
            raise ConfigError(f"{said}: of rollouts, and {store} holds a steady problem; leave the section rollout out")
        return known
    found = replace(known.in_steps_of(recipe.training.step_frames), last_frames=keys.frames_in)
    Rollout(found, keys).check(store)
    return found


def increments_of(split: Split, keys: RolloutConfig) -> Normaliser:
    """Mean and deviation of what each frame of a window adds to the last one before it, over the windows that are
    trained on: a model's output of the size of one is an increment of the usual size, however small that is. The choice
    is ours. Of at most 1024 samples, evenly over the split."""
    known, fields = split.signature, len(split.signature.targets)
    starts = Rollout(known, keys).starts
    samples = torch.from_numpy(np.unique(np.linspace(0, len(split) - 1, _MOST_SAMPLES).astype(np.int64)))
    found: list[list[list[float]]] = [[] for _ in range(known.out_channels)]
    for batch in split.batches(samples.split(1)):
        given = batch.input_BHWC[0, ..., : known.window_channels]
        trajectory = torch.cat([given, batch.target_BHWC[0]], dim=-1).double().numpy()
        trajectory = trajectory.reshape(*trajectory.shape[:-1], -1, fields)
        for channel, of_channel in enumerate(found):
            ahead, field = divmod(channel, fields)
            there = [start for start in starts if start + ahead < trajectory.shape[-2]]
            before = trajectory[..., [start - 1 for start in there], field]
            of_channel.append(moments(trajectory[..., [start + ahead for start in there], field] - before))
    normalisers = [combine(np.array(one)) for one in found]
    if len(normalisers) == 1:
        return Normaliser(normalisers[0].mean, normalisers[0].std or 1.0)
    mean, std = (tuple(float(getattr(one, name)) for one in normalisers) for name in ("mean", "std"))
    return Normaliser(mean, tuple(one or 1.0 for one in std))
