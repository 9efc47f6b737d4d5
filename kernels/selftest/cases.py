"""What the self-test computes: scans of every kind, size and precision, and the operators between matrix products.

Every combination of kind, precision, rank of dt, dstates and correction is a kernel to compile, which takes seconds. So
there are few combinations, each of several choices at once, and many sizes share one.

Axes: B batch, H x W grid, E channels, N dstates, K scan directions, r rank of the time step.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F

from geomano_hpc.kernels import dense
from geomano_hpc.kernels.orders import ScanOrder, order_set
from geomano_hpc.kernels.scan import geo_scan

Tensors = dict[str, torch.Tensor]

_ALL_EIGHT = tuple(ScanOrder.from_code(code) for code in range(8))
# Relative to the largest value of a tensor, by the precision that it is returned in.
_TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 2e-3}
_STATES_OF_THE_LOOP = 2**24  # beyond that the reference, which keeps all of them, would fill a GPU
_EPSILON = 1e-5


def _noise(seed: int, *shape: int) -> torch.Tensor:
    """Made on the CPU, so that every GPU gets the same numbers, and torch's own random state stays as it is."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass(frozen=True)
class ScanCase:
    """Forward and backward of one scan. `rank` 0 is a full dt. `correction` is "none", or a form with a
    "fixed" R of ones and zeros, as in the recipes, or a "learnable" one."""

    kind: str
    batch: int
    height: int
    width: int
    channels: int = 64
    dstate: int = 16
    rank: int = 4
    correction: str = "equation fixed"
    dtype: str = "float32"
    orders: str = "paper"
    spacing: tuple[float, float] = (1.0, 1.0)
    periodic: tuple[bool, bool] = (False, False)
    exact_hold: bool = False
    about: str = ""

    @property
    def name(self) -> str:
        grid = f"{self.kind}, batch {self.batch}, {self.height} x {self.width}, E {self.channels}, N {self.dstate}"
        dt = f"dt of rank {self.rank}" if self.rank else "full dt"
        return f"scan {grid}, {dt}, {self.correction}, {self.dtype}" + f" ({self.about})" * bool(self.about)

    def inputs(self, device: torch.device) -> Tensors:
        """B, C and a low-rank dt are parts of one tensor, as in the model. Memories are some 50 points long."""
        dtype, K = getattr(torch, self.dtype), len(self._orders)
        E, N, r, grid = self.channels, self.dstate, self.rank, (self.batch, self.height, self.width)
        projection = _noise(1, *grid, K, (r or E) + 2 * N).to(device, dtype)
        dt, B, C = projection.split([r or E, N, N], dim=-1)
        activations = {"x": _noise(0, *grid, E).to(device, dtype), "dt": dt if r else dt.contiguous(), "B": B, "C": C}
        parameters = {"A": -torch.exp(_noise(2, K, E, N)), "D": _noise(3, K, E), "dt_bias": _noise(4, K, E) - 4}
        if r:
            parameters["dt_weight"] = _noise(5, K, E, r) / r**0.5
        if self.correction.endswith("learnable"):
            parameters["R"] = _noise(6, K, E, N)
        elif self.correction != "none":
            parameters["R"] = (torch.arange(K) >= K // 2).double()[:, None, None].expand(K, E, N)
        return activations | {name: t.contiguous().to(device, torch.float32) for name, t in parameters.items()}

    @property
    def _orders(self) -> tuple[ScanOrder, ...]:
        return _ALL_EIGHT if self.orders == "all" else order_set(self.orders)

    def compute(self, inputs: Tensors, backend: str) -> Tensors:
        """y, and the gradient by every input for a fixed dy; a fixed R needs none."""
        fixed = () if self.correction.endswith("learnable") else ("R",)
        leaves = {name: t.detach().requires_grad_(name not in fixed) for name, t in inputs.items()}
        form = "state" if self.correction.startswith("state") else "equation"
        options: Any = {"R": None, **leaves, "orders": self._orders, "kind": self.kind, "correction": form}
        geometry: Any = {"spacing": self.spacing, "periodic": self.periodic, "exact_hold": self.exact_hold}
        y = geo_scan(**options, **geometry, backend=backend)
        return _with_gradients(y, leaves, self.dtype)

    def judge(self, inputs: Tensors) -> Tensors:
        """In float64 on the same device: the reference, or for large scans the chunked `torch` backend."""
        states = self.batch * self.height * self.width * self.channels * self.dstate * len(self._orders)
        exact = {name: tensor.double() for name, tensor in inputs.items()}
        return self.compute(exact, "reference" if states <= _STATES_OF_THE_LOOP else "torch")

    def tolerance(self, dtype: torch.dtype) -> float:
        """Parameters' gradients are float32 whatever the activations are, and as exact."""
        return _TOLERANCES[dtype]


# Plain torch, written out: the operators choose their own way. Inputs are called by these names.
_EXACT: dict[str, Callable[..., torch.Tensor]] = {
    "conv_silu": lambda x, weight, bias: F.silu(
        F.conv2d(x.movedim(-1, 1), weight, bias, padding=1, groups=x.shape[-1]).movedim(1, -1)
    ),
    # Taps of 5 x 5, GELU, and a ring along W.
    "depthwise_conv": lambda x, weight, bias: F.gelu(
        F.conv2d(
            torch.cat([x[:, :, -2:], x, x[:, :, :2]], dim=2).movedim(-1, 1),
            weight,
            bias,
            padding=(2, 0),
            groups=x.shape[-1],
        ).movedim(1, -1)
    ),
    "norm_gate": lambda x, z, weight, bias: F.silu(F.layer_norm(x, weight.shape, weight, bias, _EPSILON)) * F.silu(z),
    "gate": lambda x, z: x * F.silu(z),
    "layer_norm": lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias, _EPSILON),
    "gelu": lambda x: F.gelu(x),
    "negative_exp": lambda x: -torch.exp(x),
}
OPERATORS = tuple(name for name in _EXACT if hasattr(dense, name))
_TAPS = {"conv_silu": 3, "depthwise_conv": 5}
_REST = {"norm_gate": (_EPSILON,), "layer_norm": (_EPSILON,), "depthwise_conv": ("gelu", (False, True))}


@dataclass(frozen=True)
class DenseCase:
    """Forward and backward of what stands between the matrix products."""

    operator: str
    batch: int = 2
    height: int = 33
    width: int = 18
    channels: int = 64
    dtype: str = "float32"

    @property
    def name(self) -> str:
        grid = f"batch {self.batch}, {self.height} x {self.width}, E {self.channels}"
        return f"{self.operator} {grid}, {self.dtype}"

    def inputs(self, device: torch.device) -> Tensors:
        E, grid = self.channels, (self.batch, self.height, self.width, self.channels)
        taps = _TAPS.get(self.operator)
        weight = 1 + _noise(2, E) / 4 if taps is None else _noise(2, E, 1, taps, taps)
        made = {"x": _noise(0, *grid), "z": _noise(1, *grid), "weight": weight, "bias": _noise(3, E)}
        wanted = signature(_EXACT[self.operator]).parameters
        return {name: made[name].to(device, getattr(torch, self.dtype)) for name in wanted}

    def compute(self, inputs: Tensors, backend: str) -> Tensors:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
        rest = _REST.get(self.operator, ())
        y = getattr(dense, self.operator)(*leaves.values(), *rest, backend)
        return _with_gradients(y, leaves, self.dtype)

    def judge(self, inputs: Tensors) -> Tensors:
        """Plain torch in float64."""
        leaves = {name: tensor.detach().double().requires_grad_() for name, tensor in inputs.items()}
        return _with_gradients(_EXACT[self.operator](**leaves), leaves, self.dtype)

    def tolerance(self, dtype: torch.dtype) -> float:
        """Where plain torch computes in half precision, it rounds between its steps as well."""
        return _TOLERANCES[dtype] * (1 if dtype == torch.float32 else 10)


Case = ScanCase | DenseCase


def _with_gradients(y: torch.Tensor, leaves: Tensors, dtype: str) -> Tensors:
    """dy is rounded to the precision of the case, so that its judge gets the same."""
    dy = _noise(9, *y.shape).to(getattr(torch, dtype)).to(y)
    wanted = {name: tensor for name, tensor in leaves.items() if tensor.requires_grad}
    gradients = torch.autograd.grad(y, list(wanted.values()), dy)
    return {"y": y.detach(), **{f"gradient of {name}": g for name, g in zip(wanted, gradients, strict=True)}}


# One combination of choices each, so one set of compiled kernels. The first two are those of the recipes.
_SEQUENCE, _GRID = ScanCase("1d", 1, 1, 1, rank=16), ScanCase("2d", 1, 1, 1)


def _others(case: ScanCase) -> list[ScanCase]:
    """The other precisions, each with another dt, correction, number of dstates and of directions."""
    return [
        replace(case, dtype="bfloat16"),
        replace(case, rank=0, dstate=32, correction="none", orders="all", about="eight orders"),
        replace(case, rank=3, correction="state learnable", dtype="float16"),
        replace(case, correction="equation learnable", channels=100, about="E no multiple of the lanes"),
    ]


def quick_cases() -> list[Case]:
    """For the start of a training: both kinds as in the recipes, whose kernels it needs anyway, and bfloat16."""
    cases = (_SEQUENCE, _GRID, replace(_SEQUENCE, dtype="bfloat16"))
    return [
        *(replace(case, batch=2, height=37, width=19) for case in cases),
        *(DenseCase(operator) for operator in OPERATORS),
    ]


def full_cases() -> list[Case]:
    """For `geomano doctor`."""
    cases: list[Case] = []
    for case in (_SEQUENCE, _GRID):
        cases += [
            replace(case, batch=1, height=37, width=19, about="small batch: in chunks"),
            replace(case, batch=96, height=7, width=9, about="large batch: no chunks"),
            replace(case, batch=1, height=70, width=33, about="more rows than a band"),
            replace(case, batch=2, height=9, width=130, about="more columns than rows"),
            replace(case, batch=2, height=1, width=300, about="one row"),
            replace(case, batch=2, height=300, width=1, about="one column"),
        ]
        cases += [replace(other, batch=2, height=37, width=19) for other in _others(case)]
    cases += geometry_cases() + large_cases()
    cases += [
        DenseCase(operator, dtype=dtype) for operator in OPERATORS for dtype in ("float32", "bfloat16", "float16")
    ]
    return [*cases, *(DenseCase(operator, channels=40) for operator in OPERATORS)]


def geometry_cases() -> list[Case]:
    """Axes that are rings, points at another distance, which may differ by axis, and an exact hold."""
    grid = replace(_GRID, batch=2, height=37, width=19)
    return [
        replace(grid, periodic=(True, True), about="rings"),
        replace(grid, periodic=(False, True), height=70, spacing=(0.5, 1.0), about="a ring, two spacings"),
        replace(grid, height=19, width=37, spacing=(1.0, 0.5), about="two spacings"),
        replace(grid, exact_hold=True, about="exact hold"),
        replace(_SEQUENCE, batch=2, height=37, width=19, spacing=(0.5, 0.5), exact_hold=True, about="hold, spacing"),
    ]


def large_cases() -> list[Case]:
    """A layer's scan of the recipes navier_stokes and darcy."""
    return [
        replace(_SEQUENCE, batch=2, height=64, width=64, channels=256, about="as in navier_stokes"),
        replace(_GRID, batch=4, height=85, width=85, about="as in darcy"),
    ]


def tiny_cases() -> list[Case]:
    """For Triton's interpreter, and for a look at every GPU of a machine."""
    scans = [replace(case, height=5, width=4, channels=6, dstate=2, rank=2) for case in (_SEQUENCE, _GRID)]
    scans += [replace(case, correction="state learnable", rank=0, dtype="bfloat16") for case in scans]
    return [*scans, *(DenseCase(operator, 1, 3, 4, 8) for operator in OPERATORS)]
