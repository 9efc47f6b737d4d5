"""Benchmark of the scan backends, as ratios to the plain-torch reference within one run.

A backend whose numbers are wrong gets no time. Axes: B batch, H x W grid, E channels, N dstates, K directions, r rank.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from geomano_hpc.atomic import write_json
from geomano_hpc.bench.kernels.memory import extra_memory
from geomano_hpc.bench.kernels.problem import SHAPES, Shape, forward, forward_backward, judge, largest_error
from geomano_hpc.errors import GeomanoError
from geomano_hpc.kernels import backend_statuses
from geomano_hpc.progress import progress
from geomano_hpc.training.records.environment import hardware, package_versions

TOLERANCE = 1e-4  # float32 against the float64 reference, relative to the largest value


@dataclass(frozen=True)
class Row:
    shape: str
    kind: str
    backend: str
    error: float
    forward_s: float
    forward_backward_s: float
    forward_speedup: float  # over the reference in the same run
    forward_backward_speedup: float
    forward_of_floor: float | None  # compute floor / time, for the C++ kernel
    forward_backward_of_floor: float | None
    extra_memory: float | None  # peak beside inputs and outputs, as a multiple of their bytes


def bench_kernels(
    shapes: dict[str, Shape], repeats: int, out: Path | None, show_progress: bool = False
) -> dict[str, Any]:
    names = [status.name for status in backend_statuses("cpu") if status.available and status.name != "triton"]
    rows: list[Row] = []
    with progress("bench", len(shapes) * 2, shown=show_progress) as advance:
        for shape_name, shape in shapes.items():
            for kind in ("1d", "2d"):
                rows += _rows(shape_name, shape, kind, names, repeats, advance)
    content = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "shapes": {name: asdict(shape) for name, shape in shapes.items()},
        "precision": "float32",
        "threads": torch.get_num_threads(),
        "hardware": hardware(),
        "packages": package_versions(),
        "rows": [asdict(row) for row in rows],
    }
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, content)
    return content


def _rows(
    shape_name: str, shape: Shape, kind: str, names: list[str], repeats: int, advance: Callable[[str], None]
) -> list[Row]:
    expected = judge(shape, kind)
    inputs = shape.inputs(torch.float32)
    errors: dict[str, float] = {}
    for name in names:
        errors[name] = largest_error(forward_backward(inputs, kind, name), expected)
        if not errors[name] < TOLERANCE:
            raise GeomanoError(f"scan backend {name} ({kind}) is wrong by {errors[name]:.1e}: no speed is reported")
    # In turns, so that a machine that is busy for a while is so for all of them.
    times = dict.fromkeys(names, (math.inf, math.inf))
    for _ in range(repeats):
        for name in names:
            once, both = times[name]
            times[name] = (
                min(once, _time(lambda: forward(inputs, kind, name))),  # noqa: B023
                min(both, _time(lambda: forward_backward(inputs, kind, name))),  # noqa: B023
            )
    advance(f"{shape_name} {kind}")
    slow = times["reference"]
    rows = []
    for name in names:
        once, both = times[name]
        floor = _floor(shape, kind) if name == "cpu" else None
        rows.append(
            Row(
                shape_name,
                kind,
                name,
                errors[name],
                once,
                both,
                slow[0] / once,
                slow[1] / both,
                None if floor is None else floor[0] / once,
                None if floor is None else sum(floor) / both,
                extra_memory(shape, kind, name) if name in ("cpu", "torch") else None,
            )
        )
    return rows


def _floor(shape: Shape, kind: str) -> tuple[float, float]:
    """Seconds of the compute floor for the forward and for the backward."""
    from geomano_hpc.kernels.cpu.scan import compute_floor

    updates = shape.batch * shape.height * shape.width * shape.channels * shape.dstate * shape.directions
    times = [
        min(_time(lambda: compute_floor(kind, part, updates)) for _ in range(5))  # noqa: B023
        for part in ("forward", "backward")
    ]
    return times[0], times[1]


def _time(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


__all__ = ["SHAPES", "Row", "Shape", "bench_kernels"]
