"""Every Triton kernel compiles for every supported GPU, without a GPU, and spills nothing."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")


def test_every_kernel_compiles_without_spills() -> None:
    # Without coverage, which would only slow the compiler's passes down.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    environment = {name: value for name, value in inherited.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "geomano_hpc.kernels.audit.compilation", "--json"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-4000:]
    rows = json.loads(run.stdout)
    assert {row["target"] for row in rows} == {"sm_75", "sm_80", "sm_90", "sm_100", "gfx90a", "gfx942"}
    for kernel in ("forward", "backward", "chunk sweep", "combine chunks", "adjoint chunk sweep", "carries sweep"):
        assert any(row["kernel"].endswith(kernel) for row in rows)
    assert [row for row in rows if row["spill_bytes"] > 0 or row["atomics"] > 0] == []
    # What a multiprocessor of the smallest of them has.
    assert max(row["shared_bytes"] for row in rows) <= 64 * 1024
