"""Parameters and FLOPs of a model by part, with torch's own counter and a formula for the scan.

torch's counter knows matrix products and convolutions, with two operations for a multiplication and an addition. It
does not count what is done element by element, nor Fourier transforms: those of FNO and U-NO are missing.
"""

import contextlib
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from geomano_hpc.config import ModelConfig
from geomano_hpc.models.common.build import build_model

SCAN = "scan"


@dataclass(frozen=True)
class Part:
    name: str
    parameters: int
    flops: int


def scan_flops(x: Sequence[int], dt: Sequence[int], A: Sequence[int], *rest: Any, **_options: Any) -> int:
    """Operations of one `geo_scan` by the shapes of its inputs; rest is B, C, D, R, dt_bias, dt_weight, orders, kind.

    For each position, direction, channel and dstate: dt A, its exponential, dt x B, one multiplication and addition
    for the recursion (two in 2D: along the row, then along the column), one for C h, one for R Bbar x where there is a
    correction. For each channel: the expansion of a low-rank dt, bias and softplus (3), dt x, and D x.
    """
    R, dt_weight, kind = rest[3], rest[5], rest[7]
    batch, height, width, E = x
    K, N = A[0], A[2]
    states = 3 + (4 if kind == "2d" else 2) + 2 + (0 if R is None else 2)
    channels = (0 if dt_weight is None else 2 * dt[-1]) + 3 + 1 + 2
    return batch * height * width * K * E * (states * N + channels)


def convolution_flops(z: Sequence[int], weight: Sequence[int], *_rest: Any, **_options: Any) -> int:
    """Of `conv_silu` and `depthwise_conv`, as torch counts a depthwise convolution."""
    return 2 * math.prod(weight[-2:]) * math.prod(z)


def count_by_part(config: ModelConfig, in_channels: int, out_channels: int, grid: tuple[int, int]) -> list[Part]:
    """Parameters, and FLOPs of the forward of one sample. Nothing is computed for most models: their tensors are
    shapes only. A model that looks at values says so (`counted_by_shapes`)."""
    ours = torch.ops.geomano_hpc
    formula = {
        ours.geo_scan: scan_flops, ours.conv_silu: convolution_flops, ours.depthwise_conv: convolution_flops,
    }  # fmt: skip
    config.try_out(in_channels, out_channels, grid, torch.device("cpu"))
    model = build_model(config, in_channels, out_channels, grid)
    counter = FlopCounterMode(display=False, custom_mapping=formula)
    shapes_only = FakeTensorMode(allow_non_fake_inputs=True) if config.counted_by_shapes else contextlib.nullcontext()
    with shapes_only, torch.no_grad(), counter:
        model(torch.zeros(1, *grid, in_channels))
    parameters: dict[str, int] = defaultdict(int)
    flops: dict[str, int] = defaultdict(int)
    for name, parameter in model.named_parameters():
        parameters[_part(name.rpartition(".")[0] or name)] += parameter.numel()
    root = type(model).__name__
    counts = counter.get_flop_counts()  # of each module with all that is inside it
    for name, module in model.named_modules():
        path = f"{root}.{name}" if name else root
        children = [counts.get(f"{path}.{child}", {}) for child, _ in module.named_children()]
        for operator, count in counts.get(path, {}).items():
            own = count - sum(child.get(operator, 0) for child in children)
            flops[SCAN if operator is torch.ops.geomano_hpc.geo_scan else _part(name)] += own
    order = [*parameters, *(name for name in flops if name not in parameters and flops[name])]
    return [Part(name, parameters[name], flops[name]) for name in order]


def _part(name: str) -> str:
    """Of a module: `layers.3.kernel.norm` -> `layers: kernel`, since every layer is the same; `encoder.lift.0` ->
    `encoder`."""
    words = [word for word in name.split(".") if word not in ("operator", "parametrizations")]
    stacked = re.match(r"(\w+)\.\d+\.(\w+)", ".".join(words))
    return f"{stacked[1]}: {stacked[2]}" if stacked else (words[0] if words and words[0] else "other")


def part_table(parts: Sequence[Part]) -> list[str]:
    total = Part("total", sum(part.parameters for part in parts), sum(part.flops for part in parts))
    width = max(len(part.name) for part in [*parts, total])
    lines = [f"{'part':{width}}  {'parameters':>12}  {'MFLOP of a sample, forward':>26}"]
    for part in [*parts, total]:
        lines.append(f"{part.name:{width}}  {part.parameters:12,}  {part.flops / 1e6:26,.1f}")
    return lines
