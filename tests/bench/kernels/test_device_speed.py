"""The benchmark of a GPU with the CPU in its place."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from geomano_hpc.bench.kernels import problem
from geomano_hpc.bench.kernels.device_speed import bench_on_device, device_table
from geomano_hpc.bench.kernels.problem import Scan
from geomano_hpc.bench.timers import WallTimer
from geomano_hpc.errors import GeomanoError

CPU = torch.device("cpu")
SMALL = Scan(batch=1, height=4, width=5, channels=3, dstate=2)


def test_forward_and_backward_are_measured_beside_their_bounds(tmp_path: Path) -> None:
    def bounds(gpu: str, scan: Scan) -> Mapping[str, float]:
        assert gpu.startswith("CPU")
        return {"forward": 1.5, "backward": 2.5} if scan.kind == "2d" else {}

    out = tmp_path / "made" / "bench.json"
    content = bench_on_device({"small": SMALL}, 5, out, CPU, WallTimer(), "cpu", bounds)
    assert json.loads(out.read_text()) == content
    rows = {(row["kind"], row["precision"]): row for row in content["rows"]}
    assert set(rows) == {(kind, precision) for kind in ("1d", "2d") for precision in ("float32", "bfloat16")}
    for row in content["rows"]:
        for part in ("forward_ms", "backward_ms"):
            assert 0 < row[part]["lower"] <= row[part]["median"] <= row[part]["upper"]
    assert rows["1d", "float32"]["error"] < 1e-5
    assert rows["1d", "float32"]["forward_bound_ms"] is None
    assert rows["2d", "bfloat16"]["backward_bound_ms"] == 2.5
    assert content["gpu"]["self_test"]
    assert content["gpu"]["driver"]
    table = device_table(content)
    assert len(table) == 2 + 4 + 1
    assert table[4].split()[-1] == "2.500"


def test_wrong_kernel_gets_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = problem.geo_scan

    def wrong_in_float32(x: torch.Tensor, *arguments: object, **named: object) -> torch.Tensor:
        y = right(x, *arguments, **named)  # type: ignore[arg-type]
        return y * 1.001 if x.dtype == torch.float32 else y

    monkeypatch.setattr(problem, "geo_scan", wrong_in_float32)
    with pytest.raises(GeomanoError, match=r"backend cpu \(1d, float32\) is wrong by .*geomano doctor tests"):
        bench_on_device({"small": SMALL}, 1, tmp_path / "bench.json", CPU, WallTimer(), "cpu")
    assert not (tmp_path / "bench.json").exists()


def test_backward_alone_gives_the_gradients_again_and_again() -> None:
    inputs = SMALL.inputs(torch.float32, device=CPU)
    expected = SMALL.forward_backward(inputs, "cpu")
    backward = SMALL.backward(inputs, "cpu")
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(backward(), list(expected.values())[1:], strict=True))
