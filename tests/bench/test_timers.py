"""Timers of the benchmarks; torch.cuda is a stand-in that keeps a list of what it was asked for."""

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from geomano_hpc.bench.gpu import describe_gpu, measured_device
from geomano_hpc.bench.timers import CudaTimer, Spread, WallTimer, peak_mib, timer_for
from geomano_hpc.errors import ConfigError

CPU = torch.device("cpu")


class FakeCuda:
    """Its clock goes a second further with every event."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.allocated = 5 * 2**20

    def get_device_properties(self, device: torch.device) -> Any:
        return SimpleNamespace(L2_cache_size=1024)

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802
        cuda = self

        class Event:
            def record(self) -> None:
                cuda.asked.append("event")
                self.at = len(cuda.asked)

            def elapsed_time(self, end: "Event") -> float:
                assert cuda.asked[-1] == "synchronize"
                return float(end.at - self.at)

        return Event()

    def synchronize(self, device: torch.device) -> None:
        self.asked.append("synchronize")

    def memory_allocated(self, device: torch.device) -> int:
        return self.allocated

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.asked.append("reset")

    def max_memory_allocated(self, device: torch.device) -> int:
        return 12 * 2**20


def test_spread_is_median_and_quartiles_in_milliseconds() -> None:
    assert Spread.of([0.005, 0.001, 0.002, 0.004, 0.003]) == Spread(3, 2, 4)
    assert Spread.of([0.5]) == Spread(500, 500, 500)


def test_gpu_timer_overwrites_the_cache_before_each_repeat_and_waits_once() -> None:
    cuda = FakeCuda()
    timer = CudaTimer(CPU, cuda)
    assert timer._flushed.nbytes == 2048

    def work() -> None:
        assert not timer._flushed.any()
        timer._flushed.fill_(1)
        cuda.asked.append("work")

    spread = timer.spread(work, 4, before=lambda: cuda.asked.append("before"))
    assert cuda.asked == ["before", "event", "work", "event"] * 7 + ["synchronize"]
    assert spread == Spread(2, 2, 2)  # from event to event, without what comes before


def test_wall_timer_leaves_the_first_call_and_what_comes_before_out() -> None:
    calls: list[str] = []
    spread = WallTimer().spread(lambda: calls.append("work"), 3, lambda: calls.append("before"))
    assert calls == ["before", "work"] * 4
    assert 0 <= spread.lower <= spread.median <= spread.upper < 1000
    assert isinstance(timer_for(CPU), WallTimer)


def test_peak_memory_is_what_torch_allocates_on_a_gpu_and_what_the_process_needs_on_a_cpu() -> None:
    cuda = FakeCuda()
    assert peak_mib(lambda: cuda.asked.append("work"), torch.device("cuda", 0), cuda) == 7
    assert cuda.asked == ["synchronize", "reset", "work", "synchronize"]
    # What other tests of this process left behind may go in between: so several times, and with much memory.
    found = []
    for _attempt in range(3):
        gc.collect()
        found.append(peak_mib(lambda: torch.ones(2**26), CPU))
    assert max(found) > 128, found


@pytest.mark.parametrize("asked", ["gpu", "cuda:9", "meta", "cuda"])
def test_device_that_is_not_there_is_named(asked: str) -> None:
    with pytest.raises(ConfigError, match=f"--device {asked}: "):
        measured_device(asked)


def test_device_is_the_cpu_where_there_is_no_gpu() -> None:
    assert measured_device(None) == measured_device("cpu") == CPU
    found = describe_gpu(CPU)
    assert found["torch"] == torch.__version__
    assert found["gpu"].startswith("CPU ")
