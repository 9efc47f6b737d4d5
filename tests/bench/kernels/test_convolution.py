"""The benchmark of the depthwise convolution: its numbers are checked before they are timed."""

from typing import Any

import pytest
import torch

from geomano_hpc.bench.kernels import convolution
from geomano_hpc.errors import GeomanoError


def test_every_row_has_both_ways_and_what_the_taps_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "SHAPES", ((1, 5, 6, 16),))
    monkeypatch.setattr(convolution, "SIZES", (3, 5))
    lines = convolution.table(repeats=1)
    assert [line.split()[4:8] for line in lines[1:]] == [
        [size, "x", size, activation] for size in ("3", "5") for activation in ("silu", "gelu")
    ]
    assert all(line.count(" ms ") == 2 and line.count("%") == 2 for line in lines[1:])


def test_wrong_numbers_get_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    right = convolution.depthwise_conv

    def wrong(*arguments: Any, backend: str) -> torch.Tensor:
        compute: Any = right
        return compute(*arguments, backend=backend) * (1.001 if backend == "cpu" else 1)

    monkeypatch.setattr(convolution, "depthwise_conv", wrong)
    with pytest.raises(GeomanoError, match="the kernel is wrong"):
        convolution.bench_convolution((1, 5, 6, 16), 5, "gelu", 1)
