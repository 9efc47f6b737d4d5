"""Which samples make which batch. It depends on the seed and the epoch only, never on the number of ranks."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class GlobalBatch:
    """The samples of one optimiser step over all ranks. Epochs count from 1, the steps of an epoch from 0."""

    epoch: int
    step: int
    samples: torch.Tensor


def epoch_batches(samples: int, batch_size: int, seed: int, epoch: int) -> list[torch.Tensor]:
    """The shuffled global batches of one epoch; the last one may be smaller."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return list(torch.randperm(samples, generator=generator).split(batch_size))


def training_batches(
    samples: int, batch_size: int, seed: int, epochs: int, first_epoch: int = 1, first_step: int = 0
) -> Iterator[GlobalBatch]:
    """The global batches of a whole training, from any step of any epoch on: the same as if nothing had stopped it."""
    for epoch in range(first_epoch, epochs + 1):
        for step, chosen in enumerate(epoch_batches(samples, batch_size, seed, epoch)):
            if epoch > first_epoch or step >= first_step:
                yield GlobalBatch(epoch, step, chosen)


def share_of_rank(indices: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """This rank's part of a batch: every sample belongs to exactly one rank; a part may be empty."""
    return indices[rank::world_size]
