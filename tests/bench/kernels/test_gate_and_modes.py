"""The benchmark of the gate and the spectral branch: numbers are checked before they are timed."""

import pytest
import torch

from geomano_hpc.bench.kernels import gate_and_modes
from geomano_hpc.errors import GeomanoError


def test_every_row_has_both_ways_and_a_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_and_modes, "GATES", ((1, 5, 6, 16),))
    monkeypatch.setattr(gate_and_modes, "BRANCHES", ((2, 6, 5, 3), (1, 1, 7, 2)))
    monkeypatch.setattr(gate_and_modes, "MODES", (2, 4))
    lines = gate_and_modes.table(repeats=1)
    assert [line.split()[0] for line in lines[1:]] == ["gate", "2", "4", "2", "4"]
    assert all(line.count(" ms ") == 2 and line.count("%") == 2 for line in lines[1:])
    assert lines[1].split()[-2:] == ["2.00", "3.00"]  # y and z; torch keeps SiLU(z), too


def test_a_layer_with_each_key_is_compared_with_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_and_modes, "LAYER", (1, 4, 5, 16))
    lines = gate_and_modes.layers(repeats=1)
    assert len(lines) == 2 + len(gate_and_modes.MODES)
    assert lines[0].endswith(" 1.00 x")


def test_wrong_numbers_get_no_time() -> None:
    x = torch.randn(1, 2, 3, 4).requires_grad_()
    with pytest.raises(GeomanoError, match="the numbers are wrong"):
        gate_and_modes.compare(torch.exp, lambda one: 1.001 * torch.exp(one), [x], 1)
