"""Benchmark of the scan backends. A backend whose numbers are wrong gets no time.

Axes: B batch, H x W grid, E channels, N dstates, K directions, r rank of the time step.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from geomano_hpc.atomic import write_json
from geomano_hpc.errors import GeomanoError
from geomano_hpc.kernels import backend_statuses, geo_scan, order_set
from geomano_hpc.training.environment import hardware, package_versions

TOLERANCE = 1e-4  # float32 against the float64 reference, relative to the largest value


@dataclass(frozen=True)
class Shape:
    batch: int
    height: int
    width: int
    channels: int
    dstate: int
    rank: int = 4

    def inputs(self, dtype: torch.dtype, seed: int = 0) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        K, grid = 4, (self.batch, self.height, self.width)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        tensors = {
            "x": normal(*grid, self.channels),
            "dt": normal(*grid, K, self.rank),
            "A": -torch.exp(normal(K, self.channels, self.dstate)),
            "B": normal(*grid, K, self.dstate),
            "C": normal(*grid, K, self.dstate),
            "D": normal(K, self.channels),
            "R": normal(K, self.channels, self.dstate),
            "dt_bias": normal(K, self.channels) - 4,
            "dt_weight": normal(K, self.channels, self.rank) / self.rank**0.5,
        }
        return {name: tensor.to(dtype).requires_grad_() for name, tensor in tensors.items()}


def bench_kernels(shape: Shape, repeats: int, out: Path | None) -> dict[str, Any]:
    rows = []
    for kind in ("1d", "2d"):
        expected = _forward_backward(shape.inputs(torch.float64), kind, "reference")
        for status in backend_statuses():
            if not status.available:
                continue
            inputs = shape.inputs(torch.float32)
            error = _largest_error(_forward_backward(inputs, kind, status.name), expected)
            if not error < TOLERANCE:
                raise GeomanoError(f"scan backend {status.name} ({kind}) is wrong by {error:.1e}: no speed is reported")
            forward = _best_time(lambda: _forward(inputs, kind, status.name), repeats)  # noqa: B023
            both = _best_time(lambda: _forward_backward(inputs, kind, status.name), repeats)  # noqa: B023
            rows.append(
                {"kind": kind, "backend": status.name, "error": error, "forward_s": forward, "forward_backward_s": both}
            )
    content = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "shape": asdict(shape),
        "threads": torch.get_num_threads(),
        "hardware": hardware(),
        "packages": package_versions(),
        "rows": rows,
    }
    if out is not None:
        write_json(out, content)
    return content


def _forward(inputs: dict[str, torch.Tensor], kind: str, backend: str) -> torch.Tensor:
    with torch.no_grad():
        return geo_scan(**inputs, orders=order_set("paper"), kind=kind, backend=backend)  # type: ignore[arg-type]


def _forward_backward(inputs: dict[str, torch.Tensor], kind: str, backend: str) -> list[torch.Tensor]:
    y = geo_scan(**inputs, orders=order_set("paper"), kind=kind, backend=backend)  # type: ignore[arg-type]
    return [y.detach(), *torch.autograd.grad(y.square().sum(), list(inputs.values()))]


def _largest_error(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    pairs = zip(found, expected, strict=True)
    return max(((f.double() - e).abs().max() / e.abs().max()).item() for f, e in pairs)


def _best_time(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
