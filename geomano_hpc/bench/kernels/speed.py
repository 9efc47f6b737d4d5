"""Benchmark of the scan backends, as ratios to the plain-torch reference within one run.

A backend whose numbers are wrong gets no time.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from geomano_hpc.bench.kernels.memory import extra_memory
from geomano_hpc.bench.kernels.problem import Scan, judge, largest_error
from geomano_hpc.bench.measurement import seconds_of
from geomano_hpc.bench.record import make_record, write_record
from geomano_hpc.errors import GeomanoError
from geomano_hpc.kernels import backend_statuses
from geomano_hpc.progress import progress

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
    scans: Mapping[str, Scan], repeats: int, out: Path | None, show_progress: bool = False
) -> dict[str, Any]:
    """Every scan in both kinds."""
    names = [status.name for status in backend_statuses("cpu") if status.available and status.name != "triton"]
    rows: list[Row] = []
    with progress("bench", len(scans) * 2, shown=show_progress) as advance:
        for name, scan in scans.items():
            for kind in ("1d", "2d"):
                rows += _rows(name, replace(scan, kind=kind), names, repeats)
                advance(f"{name} {kind}")
    settings = {
        "shapes": {name: asdict(scan) for name, scan in scans.items()},
        "precision": "float32",
        "repeats": repeats,
        "backends": {status.name: status.reason for status in backend_statuses("cpu") if status.name in names},
    }
    content = make_record("kernels", settings, [asdict(row) for row in rows])
    write_record(out, content)
    return content


def _rows(shape: str, scan: Scan, names: list[str], repeats: int) -> list[Row]:
    expected = judge(scan)
    inputs = scan.inputs(torch.float32)
    errors: dict[str, float] = {}
    for name in names:
        errors[name] = largest_error(scan.forward_backward(inputs, name), expected)
        if not errors[name] < TOLERANCE:
            raise GeomanoError(
                f"scan backend {name} ({scan.kind}) is wrong by {errors[name]:.1e}: no speed is reported"
            )
    # In turns, so that a machine that is busy for a while is so for all of them.
    times = dict.fromkeys(names, (math.inf, math.inf))
    for _ in range(repeats):
        for name in names:
            once, both = times[name]
            times[name] = (
                min(once, seconds_of(lambda: scan.forward(inputs, name))),  # noqa: B023
                min(both, seconds_of(lambda: scan.forward_backward(inputs, name))),  # noqa: B023
            )
    slow = times["reference"]
    rows = []
    for name in names:
        once, both = times[name]
        floor = _floor(scan) if name == "cpu" else None
        rows.append(
            Row(
                shape,
                scan.kind,
                name,
                errors[name],
                once,
                both,
                slow[0] / once,
                slow[1] / both,
                None if floor is None else floor[0] / once,
                None if floor is None else sum(floor) / both,
                extra_memory(scan, name) if name in ("cpu", "torch") else None,
            )
        )
    return rows


def _floor(scan: Scan) -> tuple[float, float]:
    """Seconds of the compute floor for the forward and for the backward."""
    from geomano_hpc.kernels.cpu.scan import compute_floor

    def best(part: str) -> float:
        return min(seconds_of(lambda: compute_floor(scan.kind, part, scan.updates)) for _ in range(5))

    return best("forward"), best("backward")


def speed_table(content: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{'':27}  {'':8}  {'forward':^27}  {'forward + backward':^27}  {'extra':>6}",
        f"{'shape':13}  {'kind':4}  {'backend':9} {'error':>8}"
        + 2 * f"  {'time':>9} {'x ref.':>8} {'floor':>8}"
        + f"  {'memory':>6}",
    ]
    for row in content["rows"]:
        line = f"{row['shape']:13}  {row['kind']:4}  {row['backend']:9} {row['error']:8.1e}"
        for part in ("forward", "forward_backward"):
            floor = row[f"{part}_of_floor"]
            share = "" if floor is None else f"{floor:.0%}"
            line += f"  {row[f'{part}_s'] * 1e3:6.1f} ms {row[f'{part}_speedup']:8.1f} {share:>8}"
        memory = row["extra_memory"]
        lines.append(line + f"  {'' if memory is None else f'{memory:.2f}':>6}")
    return lines
