"""Optimiser steps: which samples a rank computes, its gradients, and what all ranks agree on after each step."""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from geomano_hpc.config import Recipe
from geomano_hpc.data import Batch, DataWait, GlobalBatch, share_of_rank, training_batches
from geomano_hpc.training.distributed.watch import RankWatch
from geomano_hpc.training.engines.engine import Engine
from geomano_hpc.training.records.checkpoint import Position
from geomano_hpc.training.records.metrics import EpochSums
from geomano_hpc.training.rollouts import Share, seed_of_noise
from geomano_hpc.training.stages import Stages
from geomano_hpc.training.trace import part


@dataclass(frozen=True)
class Agreed:
    """The same on every rank."""

    sums: list[float]
    stop: bool  # a rank was asked to stop
    save: bool  # rank 0's clock says that it is time


@dataclass(frozen=True)
class Taken:
    """One optimiser step over the samples of all ranks."""

    batch: GlobalBatch
    sums: EpochSums  # of this step alone
    stop: bool
    save: bool

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.sums.loss) and math.isfinite(self.sums.gradient_norm)

    @property
    def loss(self) -> float:
        """Per sample; of a whole rollout, where the step is trained on a part of it."""
        return self.sums.loss / self.sums.samples


def seed_of_step(seed: int, batch: GlobalBatch, rank: int) -> int:
    """For the random numbers of a model, such as its dropout: others in every step and rank, and the same again in a
    run that goes on from a checkpoint."""
    return int(np.random.SeedSequence([seed, batch.epoch, batch.step, rank]).generate_state(1, np.uint64)[0])


class Steps:
    def __init__(
        self,
        recipe: Recipe,
        engine: Engine,
        stages: Stages,
        watch: RankWatch,
        wishes: Callable[[], tuple[bool, bool]] = lambda: (False, False),
        traced: bool = False,
    ) -> None:
        """`wishes` tells whether this rank wants to stop, and to save."""
        self.recipe, self.engine, self.stages, self.ranks = recipe, engine, stages, engine.ranks
        self.samples = len(stages.own.split)
        self.per_batch = stages.own.steps_of_batch
        self.per_epoch = stages.own.steps_of_epoch(recipe.training.batch_size)
        self._watch, self._wishes, self._traced = watch, wishes, traced
        self._data_wait = DataWait()
        self._marks = itertools.count(1)

    def batches(self, position: Position) -> Generator[tuple[GlobalBatch, Iterator[Batch]]]:
        """Every step that is left, with this rank's parts of it; the samples of the next steps are read meanwhile. Of
        a rollout several steps may be taken on each batch."""
        config = self.recipe.training
        first_batch, taken = divmod(position.step - position.epoch * self.per_epoch, self.per_batch)
        for stage in self.stages.of_training:
            if position.epoch >= stage.last:
                continue
            first = max(stage.first, position.epoch + 1)
            plan = (self.samples, config.batch_size, config.seed, stage.last, first, first_batch)
            schedule = (part for batch in training_batches(*plan) for part, _ in self._parts(batch.samples))
            loaded = stage.task.split.batches(schedule, self._data_wait)
            if self.per_batch > 1:
                loaded = self._for_each_step(loaded, taken)
            for batch in training_batches(*plan):
                for number in range(taken, self.per_batch):
                    yield replace(batch, step=batch.step * self.per_batch + number), loaded
                taken = 0
            first_batch = 0

    def _for_each_step(self, loaded: Iterator[Batch], taken: int) -> Iterator[Batch]:
        """The parts of a batch again for each step on it, read once; so many steps were taken on the first batch."""
        while parts := list(itertools.islice(loaded, self.recipe.training.accumulate)):
            for _ in range(taken, self.per_batch):
                yield from parts
            taken = 0

    def _parts(self, batch: torch.Tensor) -> list[tuple[torch.Tensor, bool]]:
        """This rank's samples of a global batch in `accumulate` parts, and whether they count.

        Where there are fewer samples than ranks and parts, some compute the first sample and count it as 0: every rank
        takes part in every collective.
        """
        mine = share_of_rank(batch, self.ranks.rank, self.ranks.world_size)
        pieces = mine.tensor_split(self.recipe.training.accumulate)
        return [(piece, True) if len(piece) else (batch[:1], False) for piece in pieces]

    def take(self, batch: GlobalBatch, loaded: Iterator[Batch]) -> Taken:
        """One optimiser step. If its gradient is not finite, the weights are left as they were."""
        started, waited = time.perf_counter(), self._data_wait.seconds
        torch.manual_seed(seed_of_step(self.recipe.training.seed, batch, self.ranks.rank))
        device, task = self.engine.device, self.stages.at(batch.epoch).task
        if not self.stages.is_one:  # an evaluation before was on the grid of the data
            self.stages.place(self.engine.model, task)
        sums = torch.zeros(3, dtype=torch.float64, device=device)
        parts = self._parts(batch.samples)
        for number, (samples, counts) in enumerate(parts, start=1):
            with self._stage("data"):
                fields = next(loaded)
            last = number == len(parts)
            with self.engine.part(last):
                with self._stage("forward"):
                    losses = task.loss_parts(self.engine.network, fields, device, self._share(batch, samples))
                with self._stage("backward"):
                    total = losses.total if counts else 0.0 * losses.total
                    self.engine.backward(total, last)
            if counts:
                sums[0] += losses.named.detach()
                sums[1] += 0.0 if losses.gradient is None else losses.gradient.detach()
                sums[2] += losses.relative_l2.detach()
        with self._stage("agreement"):
            agreed = self.agree(sums)
        lr = self.engine.schedule.lr  # of this step: stepping sets that of the next
        with self._stage("optimizer"):
            norm = self.engine.step()
        named, gradient, relative = agreed.sums
        step = EpochSums(
            samples=len(batch.samples) * self._part_of_rollout(batch),
            loss=named + self.recipe.loss.gradient_weight * gradient,
            relative_l2=relative,
            gradient_loss=gradient,
            gradient_norm=norm,
            steps=1,
            seconds=time.perf_counter() - started,
            data_wait=self._data_wait.seconds - waited,
            lr=lr,
        )
        return Taken(batch, step, agreed.stop, agreed.save)

    def _share(self, batch: GlobalBatch, samples: torch.Tensor) -> Share | None:
        """Of a rollout: the windows of this step, and the seeds of the noise on these samples."""
        if not self.stages.own.signature.is_rollout:
            return None
        seed = self.recipe.training.seed
        noisy = samples.tolist() if self.recipe.rollout.noise else []
        return Share(batch.step % self.per_batch, [seed_of_noise(seed, batch.epoch, sample) for sample in noisy])

    def _part_of_rollout(self, batch: GlobalBatch) -> float:
        """That this step is trained on: what is counted of it is of whole samples."""
        return self.stages.own.rollout.part_of_rollout(batch.step % self.per_batch) if self.per_batch > 1 else 1.0

    def agree(self, sums: torch.Tensor | None = None) -> Agreed:
        """One collective for all that the ranks have to tell each other."""
        stop, save = self._wishes()
        values = torch.zeros(0, dtype=torch.float64, device=self.engine.device) if sums is None else sums
        flags = torch.tensor([stop, save], dtype=torch.float64, device=self.engine.device)
        *summed, stops, saves = self.engine.sum_over_ranks(torch.cat([values, flags])).tolist()
        return Agreed(summed, stops > 0, saves > 0)

    def mark(self) -> None:
        """The ranks pass the same marks in the same order, so one that is behind can be told from those that wait."""
        self._watch.reached(next(self._marks))

    def _stage(self, name: str) -> contextlib.AbstractContextManager[Any]:
        self.mark()
        return part(name, self._traced)
