"""What the Triton kernels may cost, at the recipes' real shapes, counted from machine code for sm_80 without a GPU."""

from dataclasses import replace
from typing import NamedTuple

import pytest

from geomano_hpc.bench import recipes
from geomano_hpc.bench.kernels import settings
from geomano_hpc.bench.kernels.gpu_audit import PARTS, PartAudit
from geomano_hpc.bench.kernels.gpus import GPUS, occupancy

pytest.importorskip("triton")
pytestmark = pytest.mark.compile

A100 = GPUS["A100"]


class Budget(NamedTuple):
    instructions: float  # of a thread and state update, all passes
    launches: int  # torch's own included
    issue: float  # seconds of an A100


BUDGETS = {
    ("navier_stokes", "forward"): Budget(24, 3, 0.20e-3),
    ("darcy", "forward"): Budget(22, 2, 0.15e-3),
    ("navier_stokes", "backward"): Budget(50, 4, 0.45e-3),
    ("darcy", "backward"): Budget(75, 6, 0.50e-3),
}


# Of Darcy with further settings.
SETTINGS_BUDGETS = {
    "spacing": {"forward": Budget(22, 2, 0.15e-3), "backward": Budget(85, 4, 0.55e-3)},
    "two spacings": {"forward": Budget(24, 2, 0.16e-3), "backward": Budget(95, 4, 0.65e-3)},
    "ring": {"forward": Budget(40, 3, 0.25e-3), "backward": Budget(110, 6, 0.70e-3)},
    "rings": {"forward": Budget(55, 3, 0.35e-3), "backward": Budget(140, 6, 0.90e-3)},
    "rings, two spacings": {"forward": Budget(70, 3, 0.45e-3), "backward": Budget(185, 6, 1.15e-3)},
    "exact hold": {"forward": Budget(28, 2, 0.20e-3), "backward": Budget(128, 4, 0.80e-3)},
    "exact hold, spacing": {"forward": Budget(35, 2, 0.25e-3), "backward": Budget(150, 4, 0.95e-3)},
}


def audited(name: str, learnable: bool | None = None) -> dict[str, PartAudit]:
    return settings.audited(name, {} if learnable is None else {"learnable_correction": learnable})


@pytest.mark.parametrize(("name", "part"), BUDGETS)
def test_instructions_launches_and_issue_bound(name: str, part: str) -> None:
    audit, budget = audited(name)[part], BUDGETS[name, part]
    assert audit.launch_count <= budget.launches
    assert audit.per_update <= budget.instructions
    assert audit.issue <= budget.issue


@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize("name", recipes.NAMES)
def test_both_recipes_corrections_keep_the_budgets(name: str, learnable: bool) -> None:
    for part, audit in audited(name, learnable).items():
        assert audit.per_update <= BUDGETS[name, part].instructions, part
        assert audit.issue <= BUDGETS[name, part].issue, part


@pytest.mark.parametrize("setting", SETTINGS_BUDGETS)
def test_another_setting_keeps_its_budget(setting: str) -> None:
    for part, audit in settings.audited("darcy", settings.SETTINGS[setting]).items():
        budget = SETTINGS_BUDGETS[setting][part]
        assert audit.launch_count <= budget.launches, part
        assert audit.per_update <= budget.instructions, part
        assert audit.issue <= budget.issue, part
        assert all(launch.spill_bytes == 0 for launch in audit.launches), part


def test_every_setting_has_a_budget() -> None:
    assert {"as in training", *SETTINGS_BUDGETS} == settings.SETTINGS.keys()


@pytest.mark.parametrize("name", recipes.NAMES)
def test_every_scheduler_of_an_a100_has_a_warp(name: str) -> None:
    for audit in audited(name).values():
        for launch in audit.launches:
            assert occupancy(launch.work, A100).warps >= 1, launch.step


def test_a_gpu_is_found_by_the_name_that_torch_gives_it() -> None:
    from geomano_hpc.bench.kernels.gpu_audit import bounds_for

    scan = recipes.scan("navier_stokes")
    found = bounds_for("NVIDIA A100-SXM4-80GB", scan)
    assert found["forward"] >= 1e3 * audited("navier_stokes")["forward"].issue
    assert found["backward"] > found["forward"]
    assert bounds_for("Some other GPU", scan) == {}


@pytest.mark.interpreter
@pytest.mark.slow(120)
def test_carries_take_no_longer_than_the_instructions() -> None:
    """Counted in the interpreter, on a program of each launch; at the bandwidth of an A100 they hide behind the issue
    bound. On grids of half the side, since the interpreter is slow: both grow with the points (docs/measured_kernels.md
    has the recipes')."""
    from geomano_hpc.bench.kernels.gpu_audit import audit

    scans = {name: recipes.scan(name) for name in recipes.NAMES}
    smaller = {name: replace(scan, height=scan.height // 2, width=scan.width // 2) for name, scan in scans.items()}
    for found in audit(smaller, A100, programs=1):
        assert found.by_kind.get("carries", 0.0) / A100.bandwidth <= found.issue, (found.call, found.part)
        assert found.part in PARTS
