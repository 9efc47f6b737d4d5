import json
from pathlib import Path

import pytest
import torch

from geomano_hpc.bench import kernels
from geomano_hpc.bench.kernels import Shape, bench_kernels
from geomano_hpc.errors import GeomanoError

SMALL = Shape(batch=1, height=4, width=5, channels=3, dstate=2)


def test_benchmark_writes_numbers_with_date_and_hardware(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    content = bench_kernels(SMALL, repeats=1, out=out)
    assert json.loads(out.read_text()) == content
    assert {(row["kind"], row["backend"]) for row in content["rows"]} == {("1d", "reference"), ("2d", "reference")}
    assert all(row["error"] < 1e-5 and row["forward_s"] > 0 for row in content["rows"])
    assert content["hardware"]["cores"]


def test_wrong_kernel_gets_no_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernels.geo_scan

    def wrong_in_float32(x: torch.Tensor, *arguments: object, **named: object) -> torch.Tensor:
        y = right(x, *arguments, **named)  # type: ignore[arg-type]
        return y * 1.001 if x.dtype == torch.float32 else y

    monkeypatch.setattr(kernels, "geo_scan", wrong_in_float32)
    with pytest.raises(GeomanoError, match="is wrong by"):
        bench_kernels(SMALL, repeats=1, out=tmp_path / "bench.json")
    assert not (tmp_path / "bench.json").exists()
