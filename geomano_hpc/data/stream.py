"""Samples that are read when they are needed, ahead of the training, by threads. Axes: S samples, B batch, H x W, C.

Threads and not worker processes: the engines release Python's lock while they read and decompress, and a process that
forks while zarr's or tensorstore's threads are alive may hang for ever.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from geomano_hpc.data.engines import SampleReader
from geomano_hpc.errors import DataError


@dataclass(frozen=True)
class Readers:
    """The threads that read, shared by all arrays and splits of a run."""

    pool: ThreadPoolExecutor
    prefetch: int  # batches that are read ahead of the one in use
    process: int

    @staticmethod
    def start(threads: int | None, prefetch: int) -> "Readers":
        threads = threads or min(4, len(os.sched_getaffinity(0)))
        pool = ThreadPoolExecutor(threads, thread_name_prefix="geomano-read")
        return Readers(pool, prefetch, os.getpid())


class InFlight(Protocol):
    """Samples that are being read."""

    def wait(self) -> torch.Tensor:
        """The samples; an error of the thread that read one of them is raised here, in its own words."""

    def cancel(self) -> None: ...


class Reads:
    """Samples that threads read into one tensor."""

    def __init__(self, out_BHWC: torch.Tensor, reads: Sequence[Future[None]]) -> None:
        self._out_BHWC, self._reads = out_BHWC, reads

    def wait(self) -> torch.Tensor:
        """The samples; an error of the thread that read one of them is raised here, in its own words."""
        for read in self._reads:
            read.result()
        return self._out_BHWC

    def cancel(self) -> None:
        for read in self._reads:
            read.cancel()


class StreamedField:
    """Rows of one array of a store, on disk. Indexed with samples it reads them, as a tensor in memory would be."""

    def __init__(self, reader: SampleReader, rows: np.ndarray, readers: Readers) -> None:
        self._reader, self._rows, self._readers = reader, rows, readers
        self.shape = (len(rows), *reader.array.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def prefetch(self) -> int:
        return self._readers.prefetch

    def __getitem__(self, samples: torch.Tensor) -> torch.Tensor:
        return self.start(samples).wait()

    def start(self, samples: torch.Tensor, pinned: bool = False) -> InFlight:
        if os.getpid() != self._readers.process:
            raise DataError(
                f"{self._reader.array.store.path}: was opened for streaming in process {self._readers.process}, which "
                "forked; the threads that read are not here: start processes with spawn, and open the store in each"
            )
        out_BHWC = torch.empty((len(samples), *self.shape[1:]), pin_memory=pinned)
        rows = out_BHWC.numpy()
        reads = []
        for row, sample in enumerate(samples.tolist()):
            assert 0 <= sample < len(self)
            reads.append(self._readers.pool.submit(self._reader.read_into, int(self._rows[sample]), rows[row]))
        return Reads(out_BHWC, reads)


class DirectRows:
    """The same without threads, for a data set whose loader has workers of its own."""

    prefetch = 0

    def __init__(self, reader: SampleReader, rows: np.ndarray) -> None:
        self._reader, self._rows = reader, rows
        self.shape = (len(rows), *reader.array.shape[1:])

    def start(self, samples: torch.Tensor, pinned: bool = False) -> InFlight:
        out_BHWC = torch.empty((len(samples), *self.shape[1:]), pin_memory=pinned)
        rows = out_BHWC.numpy()
        for row, sample in enumerate(samples.tolist()):
            self._reader.read_into(int(self._rows[sample]), rows[row])
        return Reads(out_BHWC, [])
