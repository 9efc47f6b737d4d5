"""A split of a store, in memory or streamed, with its normalisers. Axes: S samples, B batch, H x W grid, C channels."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from geomano_hpc.data.composed import Coarser, Field, Joined, Rows, Windows, prefetch_of, read_samples, start
from geomano_hpc.data.resolution import reader_at
from geomano_hpc.data.signature import Signature
from geomano_hpc.data.stream import InFlight
from geomano_hpc.data_prep.store import ARRAYS, FRAMES, STATIC, Store
from geomano_hpc.data_prep.store_card import Normaliser
from geomano_hpc.errors import DataError


@dataclass(frozen=True)
class Batch:
    """Input and target of some samples in physical units."""

    input_BHWC: torch.Tensor
    target_BHWC: torch.Tensor

    def to(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """On the device; from page-locked memory the copy runs beside the computation."""
        return tuple(field.to(device, non_blocking=field.is_pinned()) for field in (self.input_BHWC, self.target_BHWC))  # type: ignore[return-value]


@dataclass
class DataWait:
    """How long the training stood still for its data: the time inside `with` blocks."""

    seconds: float = 0.0

    def __enter__(self) -> None:
        self._entered = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._entered


@dataclass(frozen=True)
class Split:
    """Input and target of one split in physical units."""

    signature: Signature
    input_SHWC: Field
    target_SHWC: Field
    pinned: bool = False  # batches are in page-locked memory, from which a GPU copies while it computes

    def __len__(self) -> int:
        return self.input_SHWC.shape[0]

    @property
    def kind(self) -> str:
        return self.signature.kind

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(self.input_SHWC.shape[1:-1])

    @property
    def plane(self) -> tuple[int, int]:
        """(H, W) of what a model can be trained on, which volumes are not."""
        height, width = self.grid
        return height, width

    @property
    def in_channels(self) -> int:
        """Of the model: a rollout may show it only the last of the given frames."""
        return self.signature.seen_channels

    @property
    def out_channels(self) -> int:
        """Of the model: a rollout predicts a frame at a time, or a few; a steady problem the whole target."""
        return self.signature.out_channels

    @property
    def frames(self) -> int:
        """Channels of the target."""
        return self.signature.target_channels

    @property
    def input_normaliser(self) -> Normaliser:
        return self.signature.input_normaliser

    @property
    def target_normaliser(self) -> Normaliser:
        return self.signature.target_normaliser

    def coarser(self, stride: int) -> "Split":
        """The same samples on every n-th point of each axis."""
        if stride == 1:
            return self
        given, target = (Coarser(field, stride) for field in (self.input_SHWC, self.target_SHWC))
        found = replace(self, input_SHWC=given, target_SHWC=target)
        return replace(found, signature=self.signature.on_grid(found.grid))

    def batch(self, samples: torch.Tensor) -> Batch:
        fields = (self.input_SHWC, self.target_SHWC)
        return Batch(*(read_samples(field, samples, self.pinned) for field in fields))

    def batches(self, schedule: Iterable[torch.Tensor], wait: DataWait | None = None) -> Iterator[Batch]:
        """A batch for each entry of the schedule, in its order; a streamed split reads ahead while one is in use."""
        wait = wait or DataWait()
        most = max(prefetch_of(self.input_SHWC), prefetch_of(self.target_SHWC))
        if not most:
            for samples in schedule:
                with wait:
                    batch = [self.batch(samples)]
                yield batch.pop()  # no reference stays here, so that the next one may take its memory
            return
        ahead: deque[tuple[InFlight, InFlight]] = deque()
        try:
            for samples in schedule:
                ahead.append(
                    (start(self.input_SHWC, samples, self.pinned), start(self.target_SHWC, samples, self.pinned))
                )
                if len(ahead) > most:
                    yield _finish(ahead, wait)
            while ahead:
                yield _finish(ahead, wait)
        finally:
            for pair in ahead:  # the reader of these batches stopped early
                for reads in pair:
                    reads.cancel()


def _finish(ahead: deque[tuple[InFlight, InFlight]], wait: DataWait) -> Batch:
    given, target = ahead.popleft()
    with wait:
        return Batch(given.wait(), target.wait())


def samples_of(store: Store, name: str, most_samples: int | None) -> np.ndarray:
    """The numbers of the samples of a split in the store, or of its first `most_samples`; of trajectories, where frames
    are stored."""
    samples = store.split(name)
    if most_samples is not None and most_samples > len(samples):
        raise DataError(f"{store.path}: data.{name}_samples is {most_samples}, the store has {len(samples)}")
    return samples[:most_samples]


Read = Callable[[str, np.ndarray], Field]  # rows of an array of the store


def compose(store: Store, samples: np.ndarray, read: Read) -> Split:
    """The split with these samples of the store, from what `read` gives of its arrays."""
    card, signature = store.card, Signature.of(store.card)
    known = store.constants()
    constants = [] if known is None else [torch.from_numpy(known[samples])]
    if FRAMES not in store.arrays:
        given, target = (read(name, samples) for name in ARRAYS)
        return Split(signature, Joined([given, *constants]) if constants else given, target)
    windows = card.windows
    assert windows is not None
    rows = samples[:, None] * windows.frames + np.arange(windows.frames)
    frames = read(FRAMES, rows.ravel())
    starts = torch.tensor(list(windows.starts))
    first = (torch.arange(len(samples))[:, None] * windows.frames + starts).flatten()
    given = Windows(frames, first, windows.frames_in)
    target = Windows(frames, first + windows.frames_in, windows.frames_out)
    context: list[Field] = [read(STATIC, samples)] if STATIC in store.arrays else []
    of_trajectory = torch.arange(len(samples)).repeat_interleave(len(starts))
    context = [Rows(part, of_trajectory) for part in [*context, *constants]]
    return Split(signature, Joined([given, *context]) if context else given, target)


def load_split(store: Store, name: str, most_samples: int | None = None, resolution: int | None = None) -> Split:
    """Read a split, or its first `most_samples` samples, into memory; at another resolution, if asked for."""
    rows_of = store.rows if resolution is None else reader_at(store, resolution)

    def read(array: str, rows: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows_of(array, rows)))

    split = compose(store, samples_of(store, name, most_samples), read)
    return replace(split, signature=split.signature.on_grid(split.grid))
