"""Benchmark of the scan on a GPU: forward and backward apart, beside the bound of the audit.

Numbers are checked first; a wrong kernel gets no time. Everything here runs on a CPU, too, with another backend and
timer in the GPU's place.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from geomano_hpc.bench.gpu import describe_gpu
from geomano_hpc.bench.kernels.problem import Scan, Tensors, largest_error
from geomano_hpc.bench.record import make_record, write_record
from geomano_hpc.bench.timers import Timer
from geomano_hpc.errors import GeomanoError
from geomano_hpc.progress import progress

# Milliseconds that a GPU, by the name that torch gives it, needs at least for the "forward" and the "backward" of a
# scan; empty for a GPU that is not known.
Bounds = Callable[[str, Scan], Mapping[str, float]]

TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}  # relative to the largest value
PRECISIONS = ("float32", "bfloat16")


def bench_on_device(
    scans: Mapping[str, Scan],
    repeats: int,
    out: Path | None,
    device: torch.device,
    timer: Timer,
    backend: str = "triton",
    bounds: Bounds | None = None,
    precisions: Sequence[str] = PRECISIONS,
    show_progress: bool = False,
) -> dict[str, Any]:
    """Every scan in both kinds and in every precision."""
    gpu = describe_gpu(device)
    rows: list[dict[str, Any]] = []
    with progress("bench", len(scans) * 2 * len(precisions), shown=show_progress) as advance:
        for name, scan in scans.items():
            for kind in ("1d", "2d"):
                of_kind = replace(scan, kind=kind)
                bound = {} if bounds is None else dict(bounds(gpu["gpu"], of_kind))
                for precision in precisions:
                    row = {"shape": name, "kind": kind, "precision": precision, "backend": backend}
                    rows.append({**row, **_measured(of_kind, precision, repeats, device, timer, backend, bound)})
                    advance(f"{name} {kind} {precision}")
    settings = {
        "shapes": {name: asdict(scan) for name, scan in scans.items()},
        "device": str(device),
        "repeats": repeats,
        "timer": type(timer).__name__,
    }
    content = make_record("kernels", settings, rows, gpu=gpu)
    write_record(out, content)
    return content


def _measured(
    scan: Scan,
    precision: str,
    repeats: int,
    device: torch.device,
    timer: Timer,
    backend: str,
    bound: Mapping[str, float],
) -> dict[str, Any]:
    inputs = _inputs(scan, precision, device)
    error = largest_error(scan.forward_backward(inputs, backend), _judge(scan, inputs))
    if not error < TOLERANCES[precision]:
        raise GeomanoError(
            f"scan backend {backend} ({scan.kind}, {precision}) is wrong by {error:.1e} on {device}: no speed is "
            "reported; geomano doctor tests every kernel"
        )
    forward = timer.spread(lambda: scan.with_graph(inputs, backend), repeats)
    backward = timer.spread(scan.backward(inputs, backend), repeats)
    return {
        "error": error,
        "forward_ms": forward.to_json(),
        "backward_ms": backward.to_json(),
        "forward_bound_ms": bound.get("forward"),
        "backward_bound_ms": bound.get("backward"),
    }


def _inputs(scan: Scan, precision: str, device: torch.device) -> Tensors:
    """Activations in a precision, parts of one tensor as in the model; parameters in float32."""
    whole = scan.inputs(torch.float32, device=device)
    rounded = scan.inputs(getattr(torch, precision), device=device)
    return whole | {name: rounded[name] for name in ("x", "dt", "B", "C")}


def _judge(scan: Scan, inputs: Tensors) -> Tensors:
    """The same numbers in float64 on the same device, by the chunked torch backend: the reference takes minutes."""
    exact = {name: t.detach().double().requires_grad_(t.requires_grad) for name, t in inputs.items()}
    return scan.forward_backward(exact, "torch")


def device_table(content: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{'':40}  {'forward':^33}  {'backward':^33}",
        f"{'shape':13}  {'kind':4}  {'precision':9} {'error':>8}"
        + 2 * f"  {'median':>8} {'quartiles':>15} {'bound':>8}"
        + "  ms",
    ]
    for row in content["rows"]:
        line = f"{row['shape']:13}  {row['kind']:4}  {row['precision']:9} {row['error']:8.1e}"
        for part in ("forward", "backward"):
            times, bound = row[f"{part}_ms"], row[f"{part}_bound_ms"]
            quartiles = f"{times['lower']:.3f}-{times['upper']:.3f}"
            line += f"  {times['median']:8.3f} {quartiles:>15} {'' if bound is None else f'{bound:.3f}':>8}"
        lines.append(line)
    gpu = content["gpu"]
    return [*lines, f"{gpu['gpu']}, driver {gpu['driver']}; self-test: {gpu['self_test']}"]
