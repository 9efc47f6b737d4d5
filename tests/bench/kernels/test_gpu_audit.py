from typing import Any

import pytest

from geomano_hpc.bench import recipes
from geomano_hpc.bench.kernels.gpu_audit import bound_table, class_table, launch_table, part_audits
from geomano_hpc.bench.kernels.gpus import GPUS, LAUNCH, Work, bounds, busiest_multiprocessor, occupancy
from geomano_hpc.bench.kernels.step_bound import operators_of, step_bound, step_table

A100 = GPUS["A100"]


def work(classes: dict[str, float], programs: int = 432, **others: Any) -> Work:
    return Work(
        classes, sum(classes.values()) / programs, programs, **{"warps": 1, "registers": 255, "shared": 0, **others}
    )


def test_bounds_by_what_bounds_them() -> None:
    found = bounds(work({"FFMA": 1e9, "MUFU": 1e9, "SHFL": 1e9, "INT": 1e9}, bytes_moved=2039e9), A100)
    assert found["issue"] == pytest.approx(4e9 / (432 * 1.41e9))
    assert found["exp"] == pytest.approx(8 * 1e9 / (432 * 1.41e9))  # four lanes a scheduler
    assert found["fp32"] == pytest.approx(2 * 1e9 / (432 * 1.41e9))  # sixteen
    assert found["shuffle"] == pytest.approx(1e9 / (108 * 1.41e9))
    assert found["bandwidth"] == pytest.approx(1)
    assert found["launch"] == LAUNCH


def test_idle_schedulers_and_multiprocessors_do_not_count() -> None:
    full, half = work({"INT": 1e9}), work({"INT": 1e9}, programs=216)
    assert bounds(half, A100)["issue"] == pytest.approx(2 * bounds(full, A100)["issue"])
    few = work({"SHFL": 1e9}, programs=54)
    assert bounds(few, A100)["shuffle"] == pytest.approx(1e9 / (54 * 1.41e9))


def test_the_busiest_multiprocessor_has_what_is_left_over() -> None:
    """109 programs of four warps on 108 multiprocessors: one of them has two, after the other's time has passed."""
    even, odd = (work({"INT": 1e6 * programs}, programs=programs, warps=4) for programs in (108, 109))
    assert busiest_multiprocessor(even, A100) == pytest.approx(bounds(even, A100)["issue"])
    assert busiest_multiprocessor(odd, A100) == pytest.approx(2 * busiest_multiprocessor(even, A100))


def test_occupancy_by_registers_shared_memory_and_programs() -> None:
    assert occupancy(work({}, programs=10**6), A100) == (8, 2)  # 255 registers
    assert occupancy(work({}, programs=10**6, registers=128), A100).programs == 16
    assert occupancy(work({}, programs=10**6, registers=32, shared=40960), A100).programs == 4
    assert occupancy(work({}, programs=108), A100).warps == 0.25


def counted(gpu_classes: dict[str, float]) -> dict[str, Any]:
    content = {"classes": gpu_classes, "busiest": 1.0, "programs": 432, "warps": 1, "registers": 64, "shared": 0}
    rows = [
        {"part": part, "step": f"{part}_kernel", "kernel": f"{part}_kernel", "work": content, "spill_bytes": 0}
        for part in ("forward", "backward", "backward")
    ]
    return {"launches": rows, "torch": {"forward": 0, "backward": 2}}


def test_a_call_is_its_launches_and_torchs_own() -> None:
    scan = recipes.scan("darcy")
    moved = [
        {
            "kernel": f"{part}_kernel",
            "from_memory": 2039e6,
            "by_kind": {"tensors": 3e9, "carries": 1e9},
            "by_tensor": {},
        }
        for part in ("forward", "backward", "backward")
    ]
    forward, backward = part_audits("darcy", scan, A100, counted({"FFMA": scan.updates / 32, "INT": 1.0}), moved)
    assert (forward.launch_count, backward.launch_count) == (1, 4)
    assert forward.per_update == pytest.approx(1)
    assert backward.per_update == pytest.approx(2)
    assert forward.bound[0] == pytest.approx(1e-3)
    assert forward.bound[1] == "bandwidth"
    assert backward.bound[0] == pytest.approx(2e-3 + 2 * LAUNCH)
    assert backward.by_kind == {"tensors": 6e9, "carries": 2e9}
    audits = [forward, backward]
    assert [len(table(audits)) for table in (launch_table, class_table, bound_table)] == [4, 3, 3]


@pytest.mark.slow
def test_a_step_and_an_epoch_beside_the_papers() -> None:
    found = operators_of("darcy")
    assert found.scans == 8
    assert found.flops > 3e10
    scan = recipes.scan("darcy")
    audits = part_audits("darcy", scan, A100, counted({"FFMA": float(scan.updates)}), [])
    step = step_bound("darcy", A100, audits)
    assert step.calls == 250
    assert step.scans == pytest.approx(8 * sum(audit.bound[0] for audit in audits))
    assert step.epoch == pytest.approx(250 * (step.scans + step.products + step.others))
    assert "23.98 s" in step_table([step])[1]
    assert step_bound("navier_stokes", A100, []).calls == 5000
