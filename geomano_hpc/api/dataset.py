"""`open_dataset`: a split of a store as a torch Dataset.

Axes: S samples of the split, B samples of a batch, H x W grid, C channels (frames of a rollout).
"""

import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, SupportsIndex, cast, get_args

import numpy as np
import torch
from torch.utils.data import Dataset

from geomano_hpc.data import load_split
from geomano_hpc.data.engines import SampleReader, choose_engine, open_reader
from geomano_hpc.data.fields import samples_of
from geomano_hpc.data.node_memory import free_memory
from geomano_hpc.data_prep.store import ARRAYS, Normaliser, Store, open_store
from geomano_hpc.errors import ConfigError

Pair = tuple[torch.Tensor, torch.Tensor]
Loading = Literal["auto", "memory", "stream"]

_SPLITS = ("train", "test")
_SHARE_OF_FREE_MEMORY = 0.5  # that `auto` may fill


class FieldDataset(Dataset[Pair]):
    """Pairs of input and target fields of one split, in physical units. `open_dataset` makes it.

    `dataset[i]` is one pair of float32 tensors [H, W, C]; a negative i counts from the end. A slice or a list of
    numbers gives a batch of pairs, [B, H, W, C] each. In a DataLoader every worker opens the store for itself, so
    workers may be forked or spawned.

    Attributes:
        path: the store
        split: "train" or "test"
        problem: the name of the problem, such as "darcy"
        kind: "steady" (one field to another) or "rollout" (first frames to the frames that follow)
        grid: (H, W)
        in_channels: C of an input; the given frames of a rollout
        target_channels: C of a target; the frames to predict of a rollout
        input_normaliser: mean and std of the training inputs, with `encode` and `decode`
        target_normaliser: the same of the targets
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
        self._samples = _chosen_samples(store, split, samples)
        self.path, self.split = Path(path).absolute(), split
        self.problem, self.kind = store.card.problem, store.card.kind
        self.input_normaliser: Normaliser = store.card.normalisers["input"]
        self.target_normaliser: Normaliser = store.card.normalisers["target"]
        shapes = {name: store.array(name).shape[1:] for name in ARRAYS}
        _check_loading(loading)
        if resolution is not None and loading == "stream":
            raise ConfigError("open_dataset: another resolution is cut out in memory; leave loading='stream' out")
        size = len(self) * sum(4 * int(np.prod(shape)) for shape in shapes.values())
        self.loading = _chosen_loading(loading, size) if resolution is None else "memory"
        self._held: Pair | None = None  # in memory: [S, H, W, C] each
        self._readers: list[SampleReader] = []  # streamed: opened by each process for itself
        self._process = 0
        if self.loading == "memory":
            loaded = load_split(store, split, len(self), resolution)
            self._held = (cast(torch.Tensor, loaded.input_SHWC), cast(torch.Tensor, loaded.target_SHWC))
            shapes = {name: tuple(held.shape[1:]) for name, held in zip(ARRAYS, self._held, strict=True)}
        self._shapes = [shapes[name] for name in ARRAYS]
        self.grid: tuple[int, int] = (shapes["input"][0], shapes["input"][1])
        self.in_channels, self.target_channels = int(shapes["input"][2]), int(shapes["target"][2])

    def __len__(self) -> int:
        return self._samples.stop - self._samples.start

    def __getitem__(self, index: SupportsIndex | slice | Sequence[int] | torch.Tensor | np.ndarray) -> Pair:
        if isinstance(index, slice):
            return self._pairs(range(len(self))[index])
        if isinstance(index, Sequence) or (isinstance(index, torch.Tensor | np.ndarray) and index.ndim == 1):
            return self._pairs(self._numbers(index))
        given, target = self._pairs([self._number(index)])
        return given[0], target[0]

    def __repr__(self) -> str:
        where = "in memory" if self.loading == "memory" else "streamed"
        return (
            f"FieldDataset({self.problem}, {self.split}: {len(self)} samples, {self.grid[0]} x {self.grid[1]} points, "
            f"{self.in_channels} -> {self.target_channels} channels, {where})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Open files stay here: a process that gets the data set opens its own."""
        return {**self.__dict__, "_readers": [], "_process": 0}

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
        if self._held is not None:
            chosen = torch.tensor(samples, dtype=torch.long)
            return self._held[0][chosen], self._held[1][chosen]
        fields = []
        for reader, shape in zip(self._opened(), self._shapes, strict=True):
            field = torch.empty((len(samples), *shape), dtype=torch.float32)
            rows = field.numpy()
            for row, sample in enumerate(samples):
                reader.read_into(self._samples.start + sample, rows[row])
            fields.append(field)
        return fields[0], fields[1]

    def _opened(self) -> list[SampleReader]:
        """A forked worker must not use what its parent has opened: threads and locks are not there."""
        if self._process != os.getpid():
            store = open_store(self.path)
            engine = choose_engine("auto", store)
            self._readers = [open_reader(engine, store, name) for name in ARRAYS]
            self._process = os.getpid()
        return self._readers


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
        split: "train" or "test"
        loading: "memory" reads the whole split at once, "stream" a sample when it is asked for; "auto" takes memory
            if the split fits into half of what is free
        samples: only the first so many of the split
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


def _chosen_samples(store: Store, split: str, most: int | None) -> slice:
    if split not in _SPLITS:
        raise ConfigError(f"{store.path}: has no split {split!r}; choose {' or '.join(map(repr, _SPLITS))}")
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
