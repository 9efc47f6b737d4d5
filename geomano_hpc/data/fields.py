"""A split of a store as tensors, with the normalisers that go with it. Axes: S samples, H x W grid, C channels."""

from dataclasses import dataclass

import numpy as np
import torch

from geomano_hpc.data.resolution import read_at
from geomano_hpc.data_prep.store import Normaliser, Store
from geomano_hpc.errors import DataError


@dataclass(frozen=True)
class Split:
    """Input and target of one split in physical units."""

    task: str
    input_SHWC: torch.Tensor
    target_SHWC: torch.Tensor
    input_normaliser: Normaliser
    target_normaliser: Normaliser

    def __len__(self) -> int:
        return len(self.input_SHWC)

    @property
    def in_channels(self) -> int:
        return self.input_SHWC.shape[-1]

    @property
    def grid(self) -> tuple[int, int]:
        return self.input_SHWC.shape[1], self.input_SHWC.shape[2]

    @property
    def out_channels(self) -> int:
        """A rollout predicts one frame at a time; a steady problem the whole target."""
        return 1 if self.task == "rollout" else self.target_SHWC.shape[-1]


def load_split(store: Store, name: str, most_samples: int | None = None, resolution: int | None = None) -> Split:
    """Read a split, or its first `most_samples` samples, into memory; at another resolution, if asked for."""
    samples = store.card.split(name)
    available = samples.stop - samples.start
    if most_samples is not None:
        if most_samples > available:
            raise DataError(f"{store.path}: data.{name}_samples is {most_samples}, the store has {available}")
        samples = slice(samples.start, samples.start + most_samples)
    if resolution is None:
        given, target = store.read("input", samples), store.read("target", samples)
    else:
        given, target = read_at(store, samples, resolution)
    return Split(
        store.card.task,
        torch.from_numpy(np.ascontiguousarray(given)),
        torch.from_numpy(np.ascontiguousarray(target)),
        store.card.normalisers["input"],
        store.card.normalisers["target"],
    )
