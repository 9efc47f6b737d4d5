import json
from pathlib import Path

import pytest
import torch

from geomano_hpc.bench.kernels import problem
from geomano_hpc.bench.kernels.memory import extra_memory
from geomano_hpc.bench.kernels.problem import Scan
from geomano_hpc.bench.kernels.speed import bench_kernels, speed_table
from geomano_hpc.errors import GeomanoError

SMALL = Scan(batch=1, height=4, width=5, channels=3, dstate=2)


@pytest.mark.slow
def test_benchmark_writes_numbers_with_date_and_hardware(tmp_path: Path) -> None:
    out = tmp_path / "made" / "bench.json"
    content = bench_kernels({"small": SMALL}, repeats=1, out=out)
    assert json.loads(out.read_text()) == content
    names = {(row["kind"], row["backend"]) for row in content["rows"]}
    assert names == {(kind, backend) for kind in ("1d", "2d") for backend in ("cpu", "torch", "reference")}
    for row in content["rows"]:
        assert row["error"] < 1e-5
        assert row["forward_s"] > 0
        assert (row["forward_of_floor"] is None) == (row["backend"] != "cpu")
        assert row["backend"] != "reference" or row["forward_speedup"] == 1
    assert content["machine"]["cores"]
    assert len(speed_table(content)) == 2 + len(content["rows"])


def test_wrong_kernel_gets_no_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = problem.geo_scan

    def wrong_in_float32(x: torch.Tensor, *arguments: object, **named: object) -> torch.Tensor:
        y = right(x, *arguments, **named)  # type: ignore[arg-type]
        return y * 1.001 if x.dtype == torch.float32 else y

    monkeypatch.setattr(problem, "geo_scan", wrong_in_float32)
    with pytest.raises(GeomanoError, match="is wrong by"):
        bench_kernels({"small": SMALL}, repeats=1, out=tmp_path / "bench.json")
    assert not (tmp_path / "bench.json").exists()


@pytest.mark.parametrize("correction", ["0011", "learnable"])
def test_judge_in_channel_blocks_equals_the_reference_at_once(correction: str) -> None:
    scan = Scan(1, 3, 4, channels=40, dstate=2, correction=correction)
    inputs = {
        name: tensor.detach().double().requires_grad_(tensor.requires_grad)
        for name, tensor in scan.inputs(torch.float32).items()
    }
    expected = scan.forward_backward(inputs, "reference")
    assert ("R" in expected) == (correction == "learnable")
    found = problem.judge(scan)
    assert found.keys() == expected.keys()
    assert problem.largest_error(found, expected) < 1e-14


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["1d", "2d"])
@pytest.mark.parametrize(("dstate", "precision"), [(4, "float32"), (16, "float32"), (64, "float32"), (16, "bfloat16")])
def test_cpu_kernel_needs_less_than_twice_the_memory_of_its_inputs_and_outputs(
    kind: str, dstate: int, precision: str
) -> None:
    """Whatever the number of dstates: hidden states are never stored."""
    scan = Scan(2, 64, 64, channels=128, dstate=dstate, rank=8, kind=kind)
    extra = extra_memory(scan, "cpu", precision)
    assert extra is not None
    assert 0 < extra < 2
