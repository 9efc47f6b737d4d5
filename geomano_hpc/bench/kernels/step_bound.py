"""The least time of a training step and of an epoch on a GPU, beside the paper's measured epochs.

The paper's table "Efficiency comparison" has seconds per epoch of training, T_train: 23.98 for Darcy, 268.68 for
Navier-Stokes; "our experiments are conducted on one NVIDIA Quadro RTX 8000 GPU".

A call is what `bench train` times of the model: forward, loss and gradients, for Navier-Stokes once for each of ten
frames; the optimiser's update, once a step, is left out.
The scans are bound by the audit, matrix products by their operations in float32, and every other operator by the bytes
of what it takes and gives, or by its launch. Operators are counted on tensors without values; the dense parts are one
operator each, forward and backward, as on a GPU with Triton.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from geomano_hpc.bench import recipes
from geomano_hpc.bench.kernels.gpu_audit import PartAudit
from geomano_hpc.bench.kernels.gpus import GPU, LAUNCH
from geomano_hpc.bench.train.bare_step import BareStep
from geomano_hpc.kernels.audit.variants import starts_kernel
from geomano_hpc.models import build_model
from geomano_hpc.report.published import EFFICIENCY

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")


@dataclass(frozen=True)
class Operators:
    """Of one call of the model in a training step: bytes of each operator but the scan, and FLOPs of products."""

    bytes_moved: tuple[tuple[str, float], ...]
    flops: int
    scans: int


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, float]] = []
        self.scans: dict[str, int] = defaultdict(int)

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        name = operator.overloadpacket.__name__
        if name.startswith("geo_scan"):
            self.scans[name] += 1
        elif operator.namespace != "prim" and starts_kernel(operator):
            tensors = [
                t for t in torch.utils._pytree.tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor)
            ]
            self.found.append((name, float(sum(t.numel() * t.element_size() for t in tensors))))
        return result


@lru_cache
def operators_of(name: str) -> Operators:
    """Of the model of a recipe."""
    size, recipe = recipes.size(name), recipes.recipe(name)
    with FakeTensorMode():
        model = build_model(recipe.model, size.in_channels, 1, size.grid)
        given, wanted = (torch.empty(size.batch, *size.grid, count) for count in (size.in_channels, 1))
        optimizer = torch.optim.SGD(model.parameters())
        step = BareStep(model, given, wanted, recipe.loss.gradient_weight, optimizer)
        products = FlopCounterMode(display=False)
        with _Operators() as counted, products:
            step.train()
    flops = sum(
        count
        for operator, count in products.get_flop_counts()["Global"].items()
        if getattr(operator, "__name__", str(operator)) in _PRODUCTS
    )
    return Operators(tuple(counted.found), flops, counted.scans["geo_scan"])


@dataclass(frozen=True)
class StepBound:
    """Seconds at least."""

    name: str
    gpu: GPU
    scans: float
    products: float
    others: float
    calls: int  # of the model in an epoch
    launches: int  # of a call of the model

    @property
    def call(self) -> float:
        return self.scans + self.products + self.others

    @property
    def epoch(self) -> float:
        return self.call * self.calls


def step_bound(name: str, gpu: GPU, audits: list[PartAudit]) -> StepBound:
    """`audits`: forward and backward of the recipe's scan on this GPU."""
    size, operators = recipes.size(name), operators_of(name)
    own = [audit for audit in audits if audit.call == name]
    scans = operators.scans * sum(audit.bound[0] for audit in own)
    launches = operators.scans * sum(audit.launch_count for audit in own) + len(operators.bytes_moved)
    products = operators.flops / gpu.fp32_flops
    others = sum(
        max(LAUNCH, moved / gpu.bandwidth) for operator, moved in operators.bytes_moved if operator not in _PRODUCTS
    )
    steps = ceil(size.train_samples / size.batch)
    return StepBound(name, gpu, scans, products, others, steps * size.frames, launches)


def step_table(found: list[StepBound]) -> list[str]:
    lines = [
        f"{'recipe':16}  {'GPU':8}  {'scans ms':>8}  {'products ms':>11}  {'others ms':>9}  {'call ms':>8}"
        f"  {'launches':>8}  {'calls/epoch':>11}  {'epoch s':>8}  the paper's epoch, measured"
    ]
    for step in found:
        measured = EFFICIENCY[step.name]["GeoMaNO"]["train"][0] if step.name in EFFICIENCY else None
        lines.append(
            f"{step.name:16}  {step.gpu.name:8}  {step.scans * 1e3:8.2f}  {step.products * 1e3:11.2f}"
            f"  {step.others * 1e3:9.2f}  {step.call * 1e3:8.2f}  {step.launches:8}  {step.calls:11}  {step.epoch:8.2f}"
            f"  {f'{measured:.2f} s' if measured else '-'}"
        )
    return lines
