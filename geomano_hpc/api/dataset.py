"""`open_dataset`: a split of a store as a torch Dataset.

Axes: B samples of a batch, H x W grid, C channels (of a rollout the fields of each frame, frame by frame).
"""

import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, SupportsIndex, get_args

import numpy as np
import torch
from torch.utils.data import Dataset

from geomano_hpc.data import Signature, Split, load_split
from geomano_hpc.data.engines import choose_engine, open_reader
from geomano_hpc.data.fields import compose, samples_of
from geomano_hpc.data.node_memory import free_memory
from geomano_hpc.data.stream import DirectRows
from geomano_hpc.data_prep.store import FRAMES, Normaliser, Store, open_store
from geomano_hpc.errors import ConfigError

Pair = tuple[torch.Tensor, torch.Tensor]
Loading = Literal["auto", "memory", "stream"]

_SHARE_OF_FREE_MEMORY = 0.5  # that `auto` may fill


class FieldDataset(Dataset[Pair]):
    """Pairs of input and target fields of one split, in physical units. `open_dataset` makes it.

    `dataset[i]` is one pair of float32 tensors [H, W, C]; a negative i counts from the end. A slice or a list of
    numbers gives a batch of pairs, [B, H, W, C] each. In a DataLoader every worker opens the store for itself, so
    workers may be forked or spawned.

    Attributes:
        path: the store
        split: "train", "validation" (where the store has it) or "test"
        problem: the name of the problem, such as "darcy"
        kind: "steady" (fields to other fields) or "rollout" (first frames to the frames that follow)
        grid: (H, W); of volumes three numbers, and the pairs have an axis more
        inputs: names of the input's fields; of a rollout those of one frame
        targets: names of the target's fields; of a rollout those of one frame
        context: names of what a rollout's input has behind its frames: static fields and constants
        in_channels: C of an input: the fields of each given frame, frame by frame, then the context
        target_channels: C of a target: the fields of each frame to predict
        input_normaliser: mean and std of the training inputs, with `encode` and `decode`
        target_normaliser: the same of one frame of the targets
        loading: "memory" or "stream"

    Examples:
        >>> import geomano_hpc as gm
        >>> dataset = gm.open_dataset("data/darcy.zarr", split="train")
        >>> dataset
        FieldDataset(darcy, train: 10 samples, 9 x 9 points, 1 -> 1 channels, in memory)
        >>> dataset.input_normaliser.encode(dataset[0][0]).shape
        torch.Size([9, 9, 1])
    """

    def __init__(
        self,
        path: str | Path,
        split: str = "train",
        *,
        loading: Loading = "auto",
        samples: int | None = None,
        resolution: int | None = None,
    ) -> None:
        store = open_store(path)
        self._rows = _chosen_samples(store, split, samples)
        self.path, self.split = Path(path).absolute(), split
        self.problem, self.kind = store.card.problem, store.card.kind
        known = Signature.of(store.card)
        self.inputs, self.targets, self.context = known.inputs, known.targets, known.context
        self.input_normaliser: Normaliser = known.input_normaliser
        self.target_normaliser: Normaliser = known.target_normaliser
        _check_loading(loading)
        if resolution is not None and loading == "stream":
            raise ConfigError("open_dataset: another resolution is cut out in memory; leave loading='stream' out")
        windows = store.card.windows if FRAMES in store.arrays else None
        frames = 1 if windows is None else windows.frames
        size = 4 * len(self._rows) * frames * int(np.prod(store.grid)) * (known.in_channels + len(known.targets))
        self.loading = _chosen_loading(loading, size) if resolution is None else "memory"
        self._split: Split | None = None  # streamed: opened by each process for itself
        self._process = 0
        if self.loading == "memory":
            self._split = load_split(store, split, samples, resolution)
        self._length = len(self._rows) * (1 if windows is None else len(windows.starts))
        self.grid: tuple[int, ...] = store.grid if self._split is None else self._split.grid
        self.in_channels, self.target_channels = known.in_channels, known.target_channels

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: SupportsIndex | slice | Sequence[int] | torch.Tensor | np.ndarray) -> Pair:
        if isinstance(index, slice):
            return self._pairs(range(len(self))[index])
        if isinstance(index, Sequence) or (isinstance(index, torch.Tensor | np.ndarray) and index.ndim == 1):
            return self._pairs(self._numbers(index))
        given, target = self._pairs([self._number(index)])
        return given[0], target[0]

    def __repr__(self) -> str:
        where = "in memory" if self.loading == "memory" else "streamed"
        points = " x ".join(map(str, self.grid))
        return (
            f"FieldDataset({self.problem}, {self.split}: {len(self)} samples, {points} points, "
            f"{self.in_channels} -> {self.target_channels} channels, {where})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Open files stay here: a process that gets the data set opens its own."""
        return {**self.__dict__, "_process": 0} | ({"_split": None} if self.loading == "stream" else {})

    def _numbers(self, index: Sequence[int] | torch.Tensor | np.ndarray) -> list[int]:
        """Of samples that are listed, or marked in a mask as long as the split."""
        chosen = list(index) if isinstance(index, Sequence) else index.tolist()
        if not chosen or not all(isinstance(one, bool | np.bool_) for one in chosen):
            return [self._number(one) for one in chosen]
        if len(chosen) != len(self):
            raise IndexError(f"{self.path}: a mask of {len(chosen)} for the split {self.split}, which has {len(self)}")
        return [number for number, marked in enumerate(chosen) if marked]

    def _number(self, index: SupportsIndex) -> int:
        if isinstance(index, bool | np.bool_):
            raise TypeError(f"{self.path}: {index} is no number of a sample")
        number = operator.index(index)
        if not -len(self) <= number < len(self):  # an IndexError, since that is what ends an iteration
            raise IndexError(f"{self.path}: sample {number} of the split {self.split}, which has {len(self)}")
        return number % len(self)

    def _pairs(self, samples: Sequence[int]) -> Pair:
        batch = self._opened().batch(torch.tensor(samples, dtype=torch.long))
        return batch.input_BHWC, batch.target_BHWC

    def _opened(self) -> Split:
        """A forked worker must not use what its parent has opened: threads and locks are not there."""
        if self.loading == "stream" and self._process != os.getpid():
            store = open_store(self.path)
            engine = choose_engine("auto", store)
            read = lambda array, rows: DirectRows(open_reader(engine, store, array), rows)  # noqa: E731
            self._split = compose(store, self._rows, read)
            self._process = os.getpid()
        assert self._split is not None
        return self._split


def open_dataset(
    path: str | Path,
    split: str = "train",
    *,
    loading: Loading = "auto",
    samples: int | None = None,
    resolution: int | None = None,
) -> FieldDataset:
    """Open one split of a store as a torch Dataset of (input, target) in physical units.

    Args:
        path: a store of `geomano data convert`, such as "data/darcy.zarr"
        split: "train", "validation" or "test"
        loading: "memory" reads the whole split at once, "stream" a sample when it is asked for; "auto" takes memory
            if the split fits into half of what is free
        samples: only the first so many of the split; where frames are stored, trajectories
        resolution: so many points along the longer side instead of the store's own, as in `geomano eval --resolution`

    Returns:
        pairs of float32 tensors: input [H, W, C], target [H, W, C]

    Raises:
        DataError: there is no such store, it is damaged, or it has fewer samples
        ConfigError: no such split

    Examples:
        >>> import geomano_hpc as gm
        >>> from torch.utils.data import DataLoader
        >>> train = gm.open_dataset("data/darcy.zarr", split="train")
        >>> a, u = train[0]
        >>> a.shape, u.shape
        (torch.Size([9, 9, 1]), torch.Size([9, 9, 1]))
        >>> for a, u in DataLoader(train, batch_size=4, shuffle=True):
        ...     print(tuple(a.shape))
        (4, 9, 9, 1)
        (4, 9, 9, 1)
        (2, 9, 9, 1)
    """
    return FieldDataset(path, split, loading=loading, samples=samples, resolution=resolution)


def _chosen_samples(store: Store, split: str, most: int | None) -> np.ndarray:
    if split not in store.card.splits:
        known = " or ".join(map(repr, store.card.splits))
        raise ConfigError(f"{store.path}: has no split {split!r}; choose {known}")
    if most is not None and (not isinstance(most, int) or most < 1):
        raise ConfigError(f"open_dataset: samples is {most!r}, expected at least 1, or None for all of the split")
    return samples_of(store, split, most)


def _check_loading(wanted: str) -> None:
    if wanted not in get_args(Loading):
        raise ConfigError(f"open_dataset: loading is {wanted!r}; choose {', '.join(map(repr, get_args(Loading)))}")


def _chosen_loading(wanted: str, size: int) -> str:
    if wanted != "auto":
        return wanted
    return "memory" if size <= _SHARE_OF_FREE_MEMORY * free_memory() else "stream"
