"""What another spacing, rings and the exact hold cost on the CPU, as multiples of the scan without them, in turns
within one run: `python -m geomano_hpc.bench.kernels.geometry`. Seconds are the processor's, summed over the threads, so
that what others compute on the machine counts little."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from geomano_hpc.bench.kernels.problem import Scan, Tensors, largest_error
from geomano_hpc.errors import GeomanoError
from geomano_hpc.kernels import geo_scan, order_set

TOLERANCE = 1e-4  # of the largest value


@dataclass(frozen=True)
class Geometry(Scan):
    spacing: tuple[float, float] = (1.0, 1.0)
    periodic: tuple[bool, bool] = (False, False)
    exact_hold: bool = False

    def _scan(self, inputs: Tensors, backend: str) -> torch.Tensor:
        options = {"spacing": self.spacing, "periodic": self.periodic, "exact_hold": self.exact_hold}
        return geo_scan(**inputs, orders=order_set(self.orders), kind=self.kind, backend=backend, **options)  # type: ignore[arg-type]


SHAPES = (
    Geometry(2, 64, 64, 64),
    Geometry(2, 64, 64, 64, kind="1d"),
    Geometry(8, 22, 22, 32, rank=2),
    Geometry(8, 43, 43, 32, rank=2),
)
PLAIN = "spacing 1"


def cases(shape: Geometry) -> dict[str, Geometry]:
    found = {
        PLAIN: shape,
        "spacing 1/2": replace(shape, spacing=(0.5, 0.5)),
        "spacing 1/2, 1": replace(shape, spacing=(0.5, 1.0)),
        "rings": replace(shape, periodic=(True, True)),
        "exact hold": replace(shape, exact_hold=True),
        "exact hold, spacing 1/2": replace(shape, exact_hold=True, spacing=(0.5, 0.5)),
    }
    planes = ("spacing 1/2, 1", "rings")  # which say nothing of a sequence
    return {name: case for name, case in found.items() if shape.kind == "2d" or name not in planes}


def bench_geometry(shape: Geometry, repeats: int) -> dict[str, tuple[float, float]]:
    """The least seconds of each case's forward and of its backward."""
    works, times = {}, {}
    for name, case in cases(shape).items():
        check(name, case)
        inputs = case.inputs(torch.float32)
        works[name] = (case, inputs, case.backward(inputs, "cpu"))
        times[name] = (math.inf, math.inf)
    for _ in range(repeats):
        for name, (case, inputs, backward) in works.items():
            forward_s, backward_s = seconds_of(partial(case.forward, inputs, "cpu")), seconds_of(backward)
            times[name] = (min(times[name][0], forward_s), min(times[name][1], backward_s))
    return times


def seconds_of(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def check(name: str, case: Geometry) -> None:
    """On a small grid against the reference: no speed is reported for a wrong kernel."""
    small = replace(case, batch=1, height=9, width=10, channels=16)
    found = small.forward_backward(small.inputs(torch.float32), "cpu")
    exact = {n: t.detach().double().requires_grad_(t.requires_grad) for n, t in small.inputs(torch.float32).items()}
    error = largest_error(found, small.forward_backward(exact, "reference"))
    if not error < TOLERANCE:
        raise GeomanoError(f"{name}: the kernel is wrong by {error:.1e}, so no speed is reported")


def table(repeats: int = 60) -> list[str]:
    lines = [f"{'kind, B x H x W x E':20} {'':24} {'forward':>10} {'x':>6} {'backward':>10} {'x':>6}"]
    for shape in SHAPES:
        times = bench_geometry(shape, repeats)
        title = f"{shape.kind}, {shape.batch} x {shape.height} x {shape.width} x {shape.channels}"
        for name, (forward_s, backward_s) in times.items():
            ratios = forward_s / times[PLAIN][0], backward_s / times[PLAIN][1]
            lines.append(
                f"{title:20} {name:24} {1e3 * forward_s:7.2f} ms {ratios[0]:6.2f} "
                f"{1e3 * backward_s:7.2f} ms {ratios[1]:6.2f}"
            )
    return lines


if __name__ == "__main__":
    print(f"{torch.get_num_threads()} threads", *table(), sep="\n")
