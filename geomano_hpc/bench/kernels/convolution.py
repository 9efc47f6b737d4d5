"""The depthwise convolution with its activation on the CPU against torch's own, in turns within one run, and against
the taps' multiply-adds alone at the machine's peak: `python -m geomano_hpc.bench.kernels.convolution`.

Axes: B batch, H x W grid, E channels.
"""

import math
from collections.abc import Callable
from functools import partial

import torch

from geomano_hpc.bench.measurement import seconds_of
from geomano_hpc.errors import GeomanoError
from geomano_hpc.kernels import depthwise_conv
from geomano_hpc.kernels.cpu.dense import multiply_adds

SHAPES = ((4, 85, 85, 64), (8, 43, 43, 32), (2, 64, 64, 256))
SIZES = (3, 5, 7, 13)
TOLERANCE = 1e-4  # of the largest value


def bench_convolution(shape: tuple[int, ...], size: int, activation: str, repeats: int) -> dict[str, float]:
    """The least seconds of each, forward and with the gradients of z, weight and bias."""
    E = shape[-1]
    made = torch.randn(shape), torch.randn(E, 1, size, size) / size, torch.randn(E)
    z, weight, bias = (one.requires_grad_() for one in made)
    direction = torch.randn(shape)

    def forward(backend: str) -> torch.Tensor:
        with torch.no_grad():
            return depthwise_conv(z, weight, bias, activation, backend=backend)

    def both(backend: str) -> tuple[torch.Tensor, ...]:
        value = depthwise_conv(z, weight, bias, activation, backend=backend)
        return torch.autograd.grad(value, (z, weight, bias), direction)

    for one, right in zip((forward("cpu"), *both("cpu")), (forward("torch"), *both("torch")), strict=True):
        if not (one - right).abs().max() < TOLERANCE * right.abs().max():
            raise GeomanoError(f"{size} x {size} taps on {shape}: the kernel is wrong, so no speed is reported")
    works: dict[str, Callable[[], object]] = {
        f"{name} {backend}": partial(work, backend)
        for name, work in {"forward": forward, "both": both}.items()
        for backend in ("cpu", "torch")
    }
    works["taps"] = partial(multiply_adds, math.prod(shape) * size**2)
    times = dict.fromkeys(works, math.inf)
    for _ in range(repeats):
        for name, work in works.items():
            times[name] = min(times[name], seconds_of(work))
    return times


def table(repeats: int = 30) -> list[str]:
    lines = [f"{'B, H, W, E':18} {'taps':8} {'':5} {'forward':>11} {'x torch':>8} {'of peak':>8}"
             f" {'and backward':>13} {'x torch':>8} {'of peak':>8}"]  # fmt: skip
    for shape in SHAPES:
        for size in SIZES:
            for activation in ("silu", "gelu"):
                found = bench_convolution(shape, size, activation, repeats)
                line = f"{shape!s:18} {f'{size} x {size}':8} {activation:5}"
                for name, passes, width in (("forward", 1, 8), ("both", 4, 10)):  # again, dz and dweight
                    ours = found[f"{name} cpu"]
                    line += (
                        f" {1e3 * ours:{width}.2f} ms {found[f'{name} torch'] / ours:8.1f}"
                        f" {passes * found['taps'] / ours:8.0%}"
                    )
                lines.append(line)
    return lines


if __name__ == "__main__":
    print(f"{torch.get_num_threads()} threads", *table(), sep="\n")
