"""Peak memory of a training step beside the model and its data, measured by the operating system in a process of its
own."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from geomano_hpc.errors import GeomanoError


def step_memory(case: dict[str, Any], model: str) -> float:
    """MiB that a forward and backward of one batch need on top of parameters, optimiser, input and target."""
    command = [sys.executable, "-m", __name__, json.dumps(case), model]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise GeomanoError(f"measuring memory of {model} failed: {(found.stderr.strip().splitlines() or ['?'])[-1]}")
    return float(found.stdout)


def _measure(content: str, model: str) -> float:
    from geomano_hpc.bench.kernels.memory import kilobytes
    from geomano_hpc.bench.train.efficiency import Case, configurations, step_of
    from geomano_hpc.training.engines.heap import keep_freed_memory

    keep_freed_memory()  # as a training does
    case = Case.from_json(json.loads(content))
    config = configurations(case)[model]
    small = step_of(replace(case, grid=(4, 4), batch=1), config)
    small.train()  # libraries and threads are there
    step = step_of(case, config)
    before = kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # start a new peak
    step.train()
    return (kilobytes("VmHWM") - before) / 1024


if __name__ == "__main__":
    print(_measure(*sys.argv[1:]))
