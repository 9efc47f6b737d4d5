"""What a call of the scan costs the host, and its first use: Triton's own host side, on a GPU that is not there."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from geomano_hpc.kernels.audit.fake_driver import counted_compilations, fake_gpu, host_cost
from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
from geomano_hpc.kernels.orders import ORDER_SETS
from geomano_hpc.kernels.triton import launching
from geomano_hpc.kernels.triton import scan as triton_scan

pytestmark = [pytest.mark.compile, pytest.mark.slow(60)]
BARE_LAUNCHES = 5  # of the largest kernel of a call, by Triton's own kernel[grid](...): 2 to 4 on a free machine
BUSY = 1.6  # on a busy one, where the memory of a CPU, which a GPU has not, takes its time


SIZES = {"1d": (256, 16, 16), "2d": (64, 16, 4)}  # E, N and rank of the recipes, which their kernels depend on


def make(kind: str, grid: tuple[int, int] = (4, 4), batch: int = 1) -> ScanInputs:
    """A small grid, so that what is measured is Python and not the memory of a CPU."""
    K, (E, N, rank) = 4, SIZES[kind]
    rows = torch.zeros(batch, *grid, K, rank + 2 * N)
    dt, B, C = rows.split([rank, N, N], dim=-1)
    A, D = torch.zeros(K, E, N), torch.zeros(K, E)
    return ScanInputs(torch.zeros(batch, *grid, E), dt, A, B, C, D, A.clone(), D.clone(), torch.zeros(K, E, rank))


def largest_launch(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """The launch with most arguments of a call, as Triton starts it."""
    found: list[tuple[Any, ...]] = []
    with monkeypatch.context() as patches:
        patches.setattr(launching, "launch", lambda *one: found.append(one))
        call()
    kernel, grid, arguments, constants = max(found, key=lambda one: len(one[2]))
    plain = dict(constants)
    return lambda: kernel[grid](*arguments, **plain)


@pytest.mark.parametrize("kind", ["1d", "2d"])
def test_first_use_other_sizes_and_the_cost_of_a_call(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    settings = ScanSettings(ORDER_SETS["paper"], kind, "equation")

    def forward(inputs: ScanInputs) -> tuple[torch.Tensor, torch.Tensor]:
        return triton_scan.forward(inputs, settings, True)

    def backward(inputs: ScanInputs, carries: torch.Tensor) -> ScanInputs:
        return triton_scan.backward(inputs.x, inputs, settings, carries, False, in_rows=True)

    small = make(kind)
    with fake_gpu(fresh=True):
        started = time.perf_counter()
        _, carries = forward(small)
        print(f"{kind}: first use {time.perf_counter() - started:.1f} s on {os.cpu_count()} cores")
        with counted_compilations() as compiled:
            backward(small, carries)
        assert compiled.all == [], "the forward compiles what the backward launches"
        with counted_compilations() as compiled:
            for grid, batch in (((1, 1), 1), ((16, 16), 16), ((1, 70), 3), ((37, 5), 2)):
                other = make(kind, grid, batch)
                backward(other, forward(other)[1])
        assert compiled.all == [], "another grid or batch compiles nothing"
    for part, call in (("forward", lambda: forward(small)), ("backward", lambda: backward(small, carries))):
        bare_launch = largest_launch(call, monkeypatch)
        for _attempt in range(3):  # the best counts: a busy machine only adds
            whole, bare = host_cost(call), host_cost(bare_launch)
            ratio = whole.microseconds / bare.microseconds
            print(f"{kind} {part}: {ratio:.1f} bare launches, {whole.launches} launches")
            if ratio <= BARE_LAUNCHES:
                break
        assert ratio <= BUSY * BARE_LAUNCHES
