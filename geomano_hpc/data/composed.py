"""Samples that are put together when they are asked for: windows of trajectories, arrays side by side, constants.

Each of these starts reading what it needs and puts it together when that is there; what is in memory is there at once.
Axes: S samples, B batch, H x W grid (one more axis of a volume), C channels, n frames of a window, F fields.
"""

from collections.abc import Callable, Sequence

import torch

from geomano_hpc.data.stream import DirectRows, InFlight, StreamedField


class There:
    """What needs no reading."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values = values

    def wait(self) -> torch.Tensor:
        return self._values

    def cancel(self) -> None:
        pass


class Then:
    """What is made of several reads when all of them are done."""

    def __init__(self, reads: Sequence[InFlight], make: Callable[[list[torch.Tensor]], torch.Tensor]) -> None:
        self._reads, self._make = reads, make

    def wait(self) -> torch.Tensor:
        return self._make([read.wait() for read in self._reads])

    def cancel(self) -> None:
        for read in self._reads:
            read.cancel()


class Rows:
    """Rows of a field by numbers of one's own: the same for all windows of a trajectory, or a split of a store."""

    def __init__(self, field: "Field", rows_S: torch.Tensor) -> None:
        self._field, self._rows_S = field, rows_S
        self.shape: tuple[int, ...] = (len(rows_S), *field.shape[1:])

    @property
    def prefetch(self) -> int:
        return prefetch_of(self._field)

    def start(self, samples: torch.Tensor, pinned: bool = False) -> InFlight:
        return start(self._field, self._rows_S[samples], pinned)


class Windows:
    """Some frames from a first row on, as channels: the fields of the first frame, then those of the next."""

    def __init__(self, rows: "Field", first_rows_S: torch.Tensor, frames: int) -> None:
        self._rows, self._first_rows_S, self._offsets = rows, first_rows_S, torch.arange(frames)
        self.shape: tuple[int, ...] = (len(first_rows_S), *rows.shape[1:-1], frames * rows.shape[-1])

    @property
    def prefetch(self) -> int:
        return prefetch_of(self._rows)

    def start(self, samples: torch.Tensor, pinned: bool = False) -> InFlight:
        rows = self._first_rows_S[samples, None] + self._offsets
        return Then([start(self._rows, rows.flatten())], lambda read: self._windows(read[0], len(samples), pinned))

    def _windows(self, rows: torch.Tensor, windows: int, pinned: bool) -> torch.Tensor:
        found_BnHWF = rows.unflatten(0, (windows, len(self._offsets)))
        return _empty((windows, *self.shape[1:]), pinned).copy_(found_BnHWF.movedim(1, -2).flatten(-2))


class Joined:
    """Fields side by side on the last axis. Constants [S, C] become constant fields."""

    def __init__(self, parts: Sequence["Field"]) -> None:
        self._parts = parts
        self.shape: tuple[int, ...] = (*parts[0].shape[:-1], sum(part.shape[-1] for part in parts))

    @property
    def prefetch(self) -> int:
        return max(prefetch_of(part) for part in self._parts)

    def start(self, samples: torch.Tensor, pinned: bool = False) -> InFlight:
        return Then(
            [start(part, samples) for part in self._parts], lambda read: self._joined(read, len(samples), pinned)
        )

    def _joined(self, parts: Sequence[torch.Tensor], samples: int, pinned: bool) -> torch.Tensor:
        out = _empty((samples, *self.shape[1:]), pinned)
        for place, part in zip(out.split([part.shape[-1] for part in parts], dim=-1), parts, strict=True):
            place.copy_(part.reshape(samples, *[1] * (out.ndim - part.ndim), *part.shape[1:]))
        return out


class Coarser:
    """Every n-th point of each axis of a field. The field is read whole: its samples lie whole in the shards."""

    def __init__(self, field: "Field", stride: int) -> None:
        self._field = field
        self._every = (slice(None), *[slice(None, None, stride)] * (len(field.shape) - 2))
        grid = (len(range(0, points, stride)) for points in field.shape[1:-1])
        self.shape: tuple[int, ...] = (field.shape[0], *grid, field.shape[-1])

    @property
    def prefetch(self) -> int:
        return prefetch_of(self._field)

    def start(self, samples: torch.Tensor, pinned: bool = False) -> InFlight:
        return Then([start(self._field, samples)], lambda read: self._fewer(read[0], len(samples), pinned))

    def _fewer(self, values: torch.Tensor, samples: int, pinned: bool) -> torch.Tensor:
        return _empty((samples, *self.shape[1:]), pinned).copy_(values[self._every])


Field = torch.Tensor | StreamedField | DirectRows | Rows | Windows | Joined | Coarser


def prefetch_of(field: Field) -> int:
    """Batches that are read ahead; 0 for what is in memory."""
    return 0 if isinstance(field, torch.Tensor) else field.prefetch


def start(field: Field, samples: torch.Tensor, pinned: bool = False) -> InFlight:
    """Begin to read samples of a field; `pinned`: into page-locked memory, from which a GPU copies beside computing."""
    if isinstance(field, torch.Tensor):
        return There(_chosen(field, samples, pinned))
    return field.start(samples, pinned)


def read_samples(field: Field, samples: torch.Tensor, pinned: bool = False) -> torch.Tensor:
    """Samples of a field, at once."""
    if isinstance(field, torch.Tensor):
        return _chosen(field, samples, pinned)
    return field.start(samples, pinned).wait()


def _chosen(field: torch.Tensor, samples: torch.Tensor, pinned: bool) -> torch.Tensor:
    """Memory of torch's, always aligned to 64 bytes: what is computed must not depend on where a batch happens to lie.
    index_select copies whole samples: twice as fast as field[samples]."""
    return torch.index_select(field, 0, samples, out=_empty((len(samples), *field.shape[1:]), pinned))


def _empty(shape: tuple[int, ...], pinned: bool) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, pin_memory=pinned)
