"""How long work takes on a device, repeat by repeat, and how much memory it needs at most.

On a GPU work is queued, so events in its stream are timed, and its L2 cache is overwritten before every repeat: what is
measured finds its inputs in memory, as in a training, where much happens between two calls.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from geomano_hpc.bench.measurement import seconds_of
from geomano_hpc.bench.memory import peak_kib, resident_kib, start_a_new_peak

Work = Callable[[], object]
_WARM_UP = 3
_BEHIND_L2 = 256 * 2**20  # bytes of AMD's cache behind the L2, which torch says nothing about


@dataclass(frozen=True)
class Spread:
    """Median and quartiles, in milliseconds."""

    median: float
    lower: float
    upper: float

    @staticmethod
    def of(seconds: Sequence[float]) -> "Spread":
        times = [1e3 * one for one in seconds]
        if len(times) < 2:
            return Spread(times[0], times[0], times[0])
        lower, median, upper = statistics.quantiles(times, n=4, method="inclusive")
        return Spread(median, lower, upper)

    def to_json(self) -> dict[str, float]:
        return asdict(self)


class Timer(Protocol):
    def spread(self, work: Work, repeats: int, before: Work | None = None) -> Spread:
        """Of some repeats, after a warm-up. `before` runs before each of them and is not timed."""


class WallTimer:
    """For a CPU."""

    def spread(self, work: Work, repeats: int, before: Work | None = None) -> Spread:
        times = []
        for number in range(repeats + 1):
            if before is not None:
                before()
            seconds = seconds_of(work)
            if number > 0:  # the first one warms up
                times.append(seconds)
        return Spread.of(times)


class CudaTimer:
    """For a GPU. `cuda` is torch.cuda, or what takes its place in a test."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._cuda, self._device = cuda, device
        cache = 2 * int(getattr(cuda.get_device_properties(device), "L2_cache_size", 0))
        size = max(cache, 2 * _BEHIND_L2) if torch.version.hip or not cache else cache
        self._flushed = torch.empty(size, dtype=torch.int8, device=device)

    def spread(self, work: Work, repeats: int, before: Work | None = None) -> Spread:
        events = []
        for number in range(repeats + _WARM_UP):
            if before is not None:
                before()
            self._flushed.zero_()
            begin, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            if number >= _WARM_UP:
                events.append((begin, end))
        self._cuda.synchronize(self._device)  # once: the host stays ahead of the GPU
        return Spread.of([begin.elapsed_time(end) / 1e3 for begin, end in events])


def timer_for(device: torch.device) -> Timer:
    return CudaTimer(device) if device.type == "cuda" else WallTimer()


def peak_mib(work: Work, device: torch.device, cuda: Any = torch.cuda) -> float:
    """MiB that work needs at most beside what is there before it."""
    if device.type != "cuda":
        before = resident_kib()
        start_a_new_peak()
        work()
        return (peak_kib() - before) / 1024
    cuda.synchronize(device)
    before = cuda.memory_allocated(device)
    cuda.reset_peak_memory_stats(device)
    work()
    cuda.synchronize(device)
    return float(cuda.max_memory_allocated(device) - before) / 2**20
