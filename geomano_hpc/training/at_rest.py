"""Fields that are zero everywhere in a sample or a frame: a relative error of them is not defined.

Axes: B batch, H x W grid, C channels (the fields of each frame, frame by frame).
"""

from collections.abc import Sequence

import torch

from geomano_hpc.data import Signature

_MOST_NAMED = 8


def at_rest(known: Signature, target_BHWC: torch.Tensor, samples: Sequence[int]) -> str:
    """Which fields of which samples (by their numbers) are zero, in words; empty if none is."""
    is_zero_BC = (target_BHWC == 0).flatten(1, -2).all(dim=1)
    found: dict[str, list[int]] = {}
    for place, channel in is_zero_BC.nonzero().tolist():
        frame, number = divmod(channel, len(known.targets))
        words = f"{known.targets[number]} is zero everywhere" + (f" in frame {frame + 1}" if known.is_rollout else "")
        found.setdefault(words, []).append(samples[place])
    return "; ".join(f"{words} of samples {_listed(numbers)}" for words, numbers in found.items())


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:_MOST_NAMED])) + (", ..." if len(numbers) > _MOST_NAMED else "")
