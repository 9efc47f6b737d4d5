"""Two keys of a layer on the CPU, in turns within one run: the gate of `way_out: product` against torch's own, and
the spectral branch against fast transforms of the whole grid. `python -m geomano_hpc.bench.kernels.gate_and_modes`.

Times are those of one thread on the processor, whatever else is at work on the machine. The floor is a copy of as many
bytes as inputs, outputs and their gradients have. `kept` is what the forward keeps for the backward, in sizes of the
field. The last lines are a whole layer with these keys.

Axes: B batch, H x W grid, E channels.
"""

import math
import time
from collections.abc import Callable
from functools import partial

import torch

from geomano_hpc.errors import GeomanoError
from geomano_hpc.kernels import gate
from geomano_hpc.models.geomano import GeomanoConfig, GeoMaNOLayer
from geomano_hpc.models.parts.spectral import SpectralBranch

GATES = ((4, 85, 85, 64), (8, 43, 43, 32), (2, 64, 64, 256))
BRANCHES = ((1, 16, 16, 64), (8, 16, 16, 64), (1, 32, 32, 32), (8, 32, 32, 32), (2, 64, 64, 64), (1, 128, 128, 64))
MODES = (4, 6, 12)
LAYER = (2, 64, 64, 64)
TOLERANCE = 1e-4  # of the largest value

Operation = Callable[..., torch.Tensor]


def by_fast_transforms(branch: SpectralBranch, x_BHWE: torch.Tensor) -> torch.Tensor:
    """The same as the branch, with all modes of the grid in between."""
    _, H, W, _ = x_BHWE.shape
    found = torch.fft.rfft2(x_BHWE, dim=(1, 2), norm="forward")
    m, n = min(branch.modes, (H + 1) // 2), min(branch.modes, (W + 1) // 2)
    weights = torch.view_as_complex(branch.weights)
    wanted = torch.cat([weights[:m, :n], weights[2 * branch.modes - m :, :n]])
    weighted = torch.cat([found[:, :m, :n], found[:, H - m + 1 :, :n]], dim=1) * wanted
    of_all = torch.zeros_like(found)
    of_all[:, :m, :n] = weighted[:, :m]
    of_all[:, H - m + 1 :, :n] = weighted[:, m:]
    return torch.fft.irfft2(of_all, s=(H, W), dim=(1, 2), norm="forward")


def compare(ours: Operation, other: Operation, inputs: list[torch.Tensor], repeats: int) -> dict[str, float]:
    """The least seconds of each, forward and with the gradients of the inputs, and of a copy of the first of them."""
    direction, room = torch.randn(inputs[0].shape), torch.empty_like(inputs[0])

    def forward(operation: Operation) -> torch.Tensor:
        with torch.no_grad():
            return operation(*inputs)

    def both(operation: Operation) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(operation(*inputs), inputs, direction)

    for one, right in zip((forward(ours), *both(ours)), (forward(other), *both(other)), strict=True):
        if not (one - right).abs().max() < TOLERANCE * right.abs().max():
            raise GeomanoError(f"{tuple(direction.shape)}: the numbers are wrong, so no speed is reported")
    works: dict[str, Callable[[], object]] = {
        "forward": lambda: forward(ours),
        "forward of the other": lambda: forward(other),
        "both": lambda: both(ours),
        "both of the other": lambda: both(other),
        "copy": lambda: room.copy_(direction),
    }
    times = dict.fromkeys(works, math.inf)
    for _ in range(repeats):
        for name, work in works.items():
            times[name] = min(times[name], _processor_seconds(work))
    return times


def kept(operation: Operation, inputs: list[torch.Tensor]) -> float:
    """For the backward, in sizes of the first of the inputs."""
    found: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        memory = tensor.untyped_storage()
        found[memory.data_ptr()] = memory.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        operation(*inputs)
    return sum(found.values()) / inputs[0].nbytes


def _processor_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _line(
    what: str, ours: Operation, other: Operation, inputs: list[torch.Tensor], tensors: tuple[int, int], repeats: int
) -> str:
    """`tensors` is how many there are of the shape of the first input, forward and both ways."""
    times = compare(ours, other, inputs, repeats)
    line = f"{what:9} {tuple(inputs[0].shape)!s:18}"
    for name, count in zip(("forward", "both"), tensors, strict=True):
        seconds, others = times[name], times[f"{name} of the other"]
        line += f" {1e3 * seconds:9.2f} ms {others / seconds:8.1f} {count / 2 * times['copy'] / seconds:8.0%}"
    return f"{line} {kept(ours, inputs):6.2f} {kept(other, inputs):9.2f}"


def table(repeats: int = 30) -> list[str]:
    columns = f" {'x other':>8} {'of floor':>8}"
    lines = [f"{'':9} {'B, H, W, E':18} {'forward':>12}{columns} {'and backward':>12}{columns}   kept  by other"]
    for shape in GATES:
        inputs = [torch.randn(shape).requires_grad_() for _ in range(2)]
        lines.append(
            _line("gate", partial(gate, backend="cpu"), partial(gate, backend="torch"), inputs, (3, 8), repeats)
        )
    for shape in BRANCHES:
        for modes in MODES:
            branch = SpectralBranch(shape[-1], modes)

            def ours(x: torch.Tensor, _: torch.Tensor, branch: SpectralBranch = branch) -> torch.Tensor:
                return branch(x)

            def other(x: torch.Tensor, _: torch.Tensor, branch: SpectralBranch = branch) -> torch.Tensor:
                return by_fast_transforms(branch, x)

            inputs = [torch.randn(shape).requires_grad_(), branch.weights]
            lines.append(_line(f"{modes} modes", ours, other, inputs, (2, 4), repeats))
    return lines


def layers(repeats: int = 10) -> list[str]:
    """Forward and backward of a layer with a 2D scan."""
    x = torch.randn(LAYER, requires_grad=True)
    keys: dict[str, dict[str, object]] = {"as in the paper": {}, "way_out: product": {"way_out": "product"}}
    keys |= {f"spectral_modes: {modes}": {"spectral_modes": modes} for modes in MODES}
    shared = {"embedding": LAYER[-1], "kind": "2d"}
    made = {name: GeoMaNOLayer(GeomanoConfig.model_validate(shared | one)) for name, one in keys.items()}

    def both(layer: GeoMaNOLayer) -> None:
        layer(x).sum().backward()

    times = dict.fromkeys(made, math.inf)
    for _ in range(repeats):
        for name, layer in made.items():
            times[name] = min(times[name], _processor_seconds(partial(both, layer)))
    plain = times["as in the paper"]
    return [
        f"layer {LAYER}, {name:18} {1e3 * seconds:7.1f} ms {seconds / plain:6.2f} x" for name, seconds in times.items()
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(*table(), *layers(), sep="\n")
