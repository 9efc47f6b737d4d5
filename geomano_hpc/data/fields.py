"""A split of a store, in memory or streamed, with its normalisers. Axes: S samples, B batch, H x W grid, C channels."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from geomano_hpc.data.resolution import read_at
from geomano_hpc.data.stream import InFlight, StreamedField
from geomano_hpc.data_prep.store import Normaliser, Store
from geomano_hpc.errors import DataError

Field = torch.Tensor | StreamedField


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

    kind: str  # of its problem: steady or rollout
    input_SHWC: Field
    target_SHWC: Field
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
        return 1 if self.kind == "rollout" else self.target_SHWC.shape[-1]

    @property
    def frames(self) -> int:
        """Channels of the target: the frames that a rollout predicts."""
        return self.target_SHWC.shape[-1]

    def batch(self, samples: torch.Tensor) -> Batch:
        return Batch(_pick(self.input_SHWC, samples), _pick(self.target_SHWC, samples))

    def batches(self, schedule: Iterable[torch.Tensor], wait: DataWait | None = None) -> Iterator[Batch]:
        """A batch for each entry of the schedule, in its order; a streamed split reads ahead while one is in use."""
        wait = wait or DataWait()
        if not (isinstance(self.input_SHWC, StreamedField) and isinstance(self.target_SHWC, StreamedField)):
            for samples in schedule:
                with wait:
                    batch = [self.batch(samples)]
                yield batch.pop()  # no reference stays here, so that the next one may take its memory
            return
        ahead: deque[tuple[InFlight, InFlight]] = deque()
        try:
            for samples in schedule:
                ahead.append((self.input_SHWC.start(samples), self.target_SHWC.start(samples)))
                if len(ahead) > self.input_SHWC.prefetch:
                    yield _finish(ahead, wait)
            while ahead:
                yield _finish(ahead, wait)
        finally:
            for pair in ahead:  # the reader of these batches stopped early
                for reads in pair:
                    reads.cancel()


def _pick(field: Field, samples: torch.Tensor) -> torch.Tensor:
    if isinstance(field, StreamedField):
        return field[samples]
    # Memory of torch's, always aligned to 64 bytes: what is computed must not depend on where a batch happens to lie.
    out = torch.empty((len(samples), *field.shape[1:]), dtype=field.dtype, pin_memory=torch.cuda.is_available())
    return torch.index_select(field, 0, samples, out=out)  # copies whole samples: twice as fast as field[samples]


def _finish(ahead: deque[tuple[InFlight, InFlight]], wait: DataWait) -> Batch:
    given, target = ahead.popleft()
    with wait:
        return Batch(given.wait(), target.wait())


def samples_of(store: Store, name: str, most_samples: int | None) -> slice:
    """The samples of a split, or its first `most_samples`."""
    samples = store.card.split(name)
    available = samples.stop - samples.start
    if most_samples is None:
        return samples
    if most_samples > available:
        raise DataError(f"{store.path}: data.{name}_samples is {most_samples}, the store has {available}")
    return slice(samples.start, samples.start + most_samples)


def load_split(store: Store, name: str, most_samples: int | None = None, resolution: int | None = None) -> Split:
    """Read a split, or its first `most_samples` samples, into memory; at another resolution, if asked for."""
    samples = samples_of(store, name, most_samples)
    if resolution is None:
        given, target = store.read("input", samples), store.read("target", samples)
    else:
        given, target = read_at(store, samples, resolution)
    return Split(
        store.card.kind,
        torch.from_numpy(np.ascontiguousarray(given)),
        torch.from_numpy(np.ascontiguousarray(target)),
        store.card.normalisers["input"],
        store.card.normalisers["target"],
    )
