"""What another spacing and the exact hold cost: numbers are checked before they are timed."""

from dataclasses import replace

import pytest
import torch

from geomano_hpc.bench.kernels import geometry
from geomano_hpc.bench.kernels.problem import Tensors
from geomano_hpc.errors import GeomanoError

SMALL = geometry.Geometry(1, 5, 6, 16)


def test_every_case_has_its_times_beside_those_of_the_plain_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry, "SHAPES", (SMALL, replace(SMALL, kind="1d")))
    lines = geometry.table(repeats=1)[1:]
    assert [line.startswith("1d") for line in lines] == [False] * 6 + [True] * 4
    assert all(line.count(" ms ") == 2 for line in lines)
    assert [line.count("  1.00") for line in lines if "spacing 1 " in line] == [2, 2]


def test_a_kernel_that_ignores_the_spacing_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_spacing(self: geometry.Geometry, inputs: Tensors, backend: str) -> torch.Tensor:
        return right(replace(self, spacing=(1.0, 1.0)) if backend == "cpu" else self, inputs, backend)

    right = geometry.Geometry._scan
    monkeypatch.setattr(geometry.Geometry, "_scan", without_spacing)
    with pytest.raises(GeomanoError, match="spacing 1/2: the kernel is wrong by"):
        geometry.bench_geometry(SMALL, 1)
