"""Which samples make which batch. It depends on the seed and the epoch only, never on the number of ranks."""

import torch


def epoch_batches(samples: int, batch_size: int, seed: int, epoch: int) -> list[torch.Tensor]:
    """The shuffled global batches of one epoch; the last one may be smaller."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return list(torch.randperm(samples, generator=generator).split(batch_size))


def share_of_rank(indices: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """This rank's part of a batch: every sample belongs to exactly one rank; a part may be empty."""
    return indices[rank::world_size]
