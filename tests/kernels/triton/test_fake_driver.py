"""Triton's host side on a GPU that is not there: launches, compilations and the host's cost are counted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from geomano_hpc.kernels.audit.fake_driver import HostCost, counted_compilations, fake_gpu, host_cost
from geomano_hpc.kernels.triton import launching
from tests.support import small_kernels

pytestmark = pytest.mark.compile
NEWER = os.environ.get("GEOMANO_NEWER_TRITON", "")
ONCE = {"num_warps": 4, "num_stages": 1}


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def start(size: int = 4) -> None:
    launching.launch(small_kernels.scaled, (size,), (torch.zeros(size * 32), size, 2.0), {"BLOCK": 32, **ONCE})


def test_a_launch_is_counted_and_compiled_once() -> None:
    with fake_gpu(fresh=True) as gpu, counted_compilations() as compiled:
        start()
        start()
        assert gpu.launches == ["scaled", "scaled"]
        assert compiled.new == ["scaled"]
        assert compiled.known == []


def test_another_size_compiles_nothing_and_another_constant_does() -> None:
    with fake_gpu(fresh=True):
        start(4)
        with counted_compilations() as compiled:
            for size in (1, 16, 37, 2048):
                start(size)
        assert compiled.all == []
        with counted_compilations() as compiled:
            launching.launch(small_kernels.scaled, (4,), (torch.zeros(256), 4, 2.0), {"BLOCK": 64, **ONCE})
        assert compiled.new == ["scaled"]


def test_a_kernel_that_specialises_on_its_integers_is_found_out() -> None:
    with fake_gpu(fresh=True), counted_compilations() as compiled:
        for size in (1, 16, 37):
            small_kernels.specialised[(1,)](torch.zeros(64), size, **ONCE)
    assert compiled.new == ["specialised"] * 3


def test_a_new_process_finds_what_another_compiled() -> None:
    with fake_gpu(fresh=True):
        start()
    with fake_gpu(fresh=True), counted_compilations() as compiled:
        start()
    assert compiled.known == ["scaled"]
    assert compiled.new == []


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_other_gpus(target: str) -> None:
    with fake_gpu(target, fresh=True) as gpu, counted_compilations() as compiled:
        start()
    assert gpu.launches == compiled.new == ["scaled"]


def test_the_real_driver_is_back_afterwards() -> None:
    from triton.runtime import driver

    before = driver._active
    with pytest.raises(ZeroDivisionError), fake_gpu():
        _ = 1 // 0
    assert driver._active is before


def test_the_hosts_cost_is_told_in_bare_launches() -> None:
    def three() -> None:
        for _ in range(3):
            start()

    def best(tries: int = 3) -> HostCost:
        return min((host_cost(three, rounds=20) for _ in range(tries)), key=lambda cost: cost.bare_launches)

    cost = best()
    assert cost.launches == 3
    assert cost.bare_microseconds > 0
    assert 2 < cost.bare_launches < 10  # three launches, and a tensor is made for each


@pytest.mark.skipif(not NEWER, reason="GEOMANO_NEWER_TRITON names no folder with a newer triton; make test sets it")
def test_with_a_newer_triton() -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    paths = [NEWER, *filter(None, [variables.get("PYTHONPATH")])]
    variables |= {"PYTHONPATH": os.pathsep.join(paths), "GEOMANO_NEWER_TRITON": ""}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "not newer", __file__]
    run = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
