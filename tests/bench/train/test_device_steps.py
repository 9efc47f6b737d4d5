"""The benchmark of training steps on a GPU with the CPU in its place."""

import json
from dataclasses import replace
from pathlib import Path

import torch

from geomano_hpc.bench.timers import WallTimer, Work
from geomano_hpc.bench.train.device_steps import bench_steps, steps_table
from geomano_hpc.bench.train.efficiency import cases, efficiency_table
from geomano_hpc.models.transolver import TransolverConfig

DARCY = cases()["darcy"]
TINY = replace(
    DARCY,
    size=replace(DARCY.size, grid=(6, 5), batch=1),
    transolver=TransolverConfig(depth=1, embedding=16, slices=4),
)


def test_steps_are_measured_with_spread_and_memory(tmp_path: Path) -> None:
    def peak(work: Work, device: torch.device) -> float:
        work()
        return 64.0

    out = tmp_path / "train.json"
    content = bench_steps({"darcy": TINY}, 2, out, torch.device("cpu"), WallTimer(), peak)
    assert json.loads(out.read_text()) == content
    ours, other = content["rows"]
    assert (ours["model"], other["model"]) == ("GeoMaNO", "Transolver")
    times = ours["step_ms"]
    assert set(times) == {"train", "update", "infer"}
    assert times["train"]["lower"] <= times["train"]["median"] <= times["train"]["upper"]
    epoch = TINY.size.train_samples * (times["train"]["median"] + times["update"]["median"]) / 1e3
    assert abs(ours["train_s"] - epoch) < 1e-9 * epoch
    assert ours["memory_mib"] == 64
    assert all(one["at_most"] is None for one in content["measurements"])  # the bars are a CPU's
    assert content["gpu"]["gpu"].startswith("CPU")
    assert "23.98" in efficiency_table(content)[2]
    assert len(steps_table(content)) == 1 + 6 + 1
