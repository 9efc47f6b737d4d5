"""Triton's own host side without a GPU: everything up to the driver's launch is real, and the launch is only counted.

Inside `fake_gpu()`, `kernel[grid](...)` with tensors of the CPU binds, specialises, compiles for the target and finds
its caches as on a GPU, and then nothing runs. So the host's cost of a call and what it compiles can be measured here.
TRITON_INTERPRET must not be set: Triton reads it when a kernel is defined.
"""

import gc
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.driver import GPUDriver
from triton.runtime import driver as active_driver

from geomano_hpc.kernels.audit.compilation import TARGETS

_SHARED_BYTES = 227 * 1024
_new_device = itertools.count()


class FakeDriver(GPUDriver):
    """A GPU that takes every launch and does nothing."""

    def __init__(self, target: str, device: str) -> None:
        # Not GPUDriver's own: it asks torch for CUDA.
        gpu = GPUTarget(*TARGETS[target])
        self.launches: list[str] = []
        self.get_current_device = lambda: device
        self.get_current_stream = lambda _device: 0
        self.set_current_device = lambda _device: None
        self.gpu = gpu
        self.launcher_cls = self._launcher
        self.utils = SimpleNamespace(
            load_binary=lambda *_: (1, 1, 32, 0, 1024),  # module, function, registers, spills, threads at most
            unload_module=lambda _module: None,
            get_device_properties=lambda _device: {"max_shared_mem": _SHARED_BYTES, "warpSize": gpu.warp_size},
        )

    def _launcher(self, source: Any, metadata: Any) -> Callable[..., None]:
        launched, name = self.launches.append, metadata.name

        def launch(*_: Any) -> None:
            launched(name)

        return launch

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError("a fake GPU builds no launcher")

    def get_current_target(self) -> GPUTarget:
        return self.gpu

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("a fake GPU takes no time")


@cache
def _known_driver(target: str, device: str) -> FakeDriver:
    return FakeDriver(target, device)


@contextmanager
def fake_gpu(target: str = "sm_80", fresh: bool = False) -> Iterator[FakeDriver]:
    """Launches inside the block go to a GPU that is not there. What is compiled stays known to the process for the next
    such block with this target, unless it asks for a fresh one. Triton's cache on disk (TRITON_CACHE_DIR) is in use."""
    device = f"fake {target}" + (f" {next(_new_device)}" if fresh else "")
    before = active_driver._active
    fake = FakeDriver(target, device) if fresh else _known_driver(target, device)  # compiled kernels keep their driver
    fake.launches.clear()
    active_driver.set_active(fake)
    try:
        yield fake
    finally:
        active_driver._active = before


@dataclass
class Compilations:
    """Kernels by name, each time the process met a new specialisation."""

    new: list[str] = field(default_factory=list)  # compiled from source
    known: list[str] = field(default_factory=list)  # found in Triton's cache on disk

    @property
    def all(self) -> list[str]:
        return self.new + self.known


@contextmanager
def counted_compilations() -> Iterator[Compilations]:
    """What is compiled inside the block. A call of another size that compiles nothing new leaves `all` empty."""
    found = Compilations()
    before = triton.knobs.compilation.listener

    def listener(*, src: Any, metadata: Any, metadata_group: Any, times: Any, cache_hit: bool) -> None:
        (found.known if cache_hit else found.new).append(src.name)
        if before is not None:
            before(src=src, metadata=metadata, metadata_group=metadata_group, times=times, cache_hit=cache_hit)

    triton.knobs.compilation.listener = listener
    try:
        yield found
    finally:
        triton.knobs.compilation.listener = before


@triton.jit(do_not_specialize=["a", "b", "c"], do_not_specialize_on_alignment=["x"])
def bare_kernel(x, a, b, c):  # type: ignore[no-untyped-def]
    tl.store(x + a, b + c)


@dataclass(frozen=True)
class HostCost:
    """Medians. `bare` is one launch of a kernel with a pointer and three integers."""

    microseconds: float
    bare_microseconds: float
    launches: int  # of Triton kernels in one call

    @property
    def bare_launches(self) -> float:
        """The cost of the call in units of a bare launch."""
        return self.microseconds / self.bare_microseconds


def host_cost(call: Callable[[], Any], rounds: int = 50, calls: int = 10, target: str = "sm_80") -> HostCost:
    """What a call costs the host beside a bare launch: both in turns in this process, so that a slow moment of the
    machine meets both. `call` launches kernels on tensors of the CPU and must not need their results."""
    x = torch.zeros(1, dtype=torch.int32)

    def bare() -> None:
        bare_kernel[(1,)](x, 0, 1, 2, num_warps=1, num_stages=1)

    with fake_gpu(target) as gpu:
        for function in (bare, call, bare, call):  # compiled, and caches warm
            function()
        gpu.launches.clear()
        call()
        launches = len(gpu.launches)
        seconds: dict[Callable[[], Any], list[float]] = {bare: [], call: []}
        collecting = gc.isenabled()
        gc.disable()
        try:
            for _ in range(rounds):
                for function, taken in seconds.items():
                    start = time.thread_time()  # of this thread alone: a busy machine takes others
                    for _ in range(calls):
                        function()
                    taken.append((time.thread_time() - start) / calls)
                gpu.launches.clear()
        finally:
            if collecting:
                gc.enable()
    cost, unit = (1e6 * min(seconds[function]) for function in (call, bare))  # the best: a busy machine only adds
    return HostCost(cost, unit, launches)
