"""What a scan takes, in the form that every backend gets, and the check that it fits together.

Axes: B batch, H x W grid, E channels, N dstates, K scan directions, r rank of the time step.
"""

from typing import NamedTuple

import torch
from torch.autograd import forward_ad

from geomano_hpc.kernels.orders import ScanOrder

CORRECTIONS = ("equation", "state", "input")  # where R is subtracted; backends know the first two


class ScanInputs(NamedTuple):
    """The tensors of one scan; also their gradients, which have the same shapes.

    x, dt, B, C are activations and share one precision. The others are parameters, in `state_dtype` of it.
    """

    x: torch.Tensor  # [B, H, W, E]
    dt: torch.Tensor  # before bias and softplus: [B, H, W, K, E], or [B, H, W, K, r] together with dt_weight
    A: torch.Tensor  # [K, E, N]
    B: torch.Tensor  # [B, H, W, K, N]
    C: torch.Tensor  # [B, H, W, K, N]
    D: torch.Tensor  # [K, E]
    R: torch.Tensor | None  # [K, E, N], None for the vanilla SSM
    dt_bias: torch.Tensor  # [K, E]
    dt_weight: torch.Tensor | None  # [K, E, r]


class ScanSettings(NamedTuple):
    orders: tuple[ScanOrder, ...]
    kind: str  # "1d" or "2d"
    correction: str  # "equation" or "state"
    stretch: float = 1.0  # 2d: the decay's exponents along H over those along W, which A has; see `stretch_down`
    periodic: tuple[bool, bool] = (False, False)  # 2d: along H, along W the states are closed on the ring
    own: tuple[float, float] = (0.0, 0.0)  # along H, along W: what a point counts more for itself; see `own_of`
    hold: tuple[float, float] | None = None  # along H, along W: Bbar is an exact zero-order hold; see `hold_of`

    def stretch_down(self, order: ScanOrder) -> float:
        """Of a turned grid: Abar of the column recursion has the exponent stretch_down * dt A, that of the row dt A."""
        return 1.0 / self.stretch if order.column_major else self.stretch

    def closed(self, order: ScanOrder) -> tuple[bool, bool]:
        """Of a turned grid: whether its columns (h) and its rows (g) are rings."""
        along_H, along_W = self.periodic
        return (along_W, along_H) if order.column_major else (along_H, along_W)

    def own_of(self, order: ScanOrder) -> tuple[float, float]:
        """Of a turned grid, down its columns and along its rows: with S the recursion along rows and T that along
        columns, h = (T + own_down) (S + own_along) u. The first point that S, or T, takes in counts 1 + own for it, but
        on rings. In 1d h = (S + own_along) u."""
        along_H, along_W = self.own
        return (along_W, along_H) if order.column_major else (along_H, along_W)

    def hold_of(self, order: ScanOrder) -> float:
        """Bbar = dt B phi(hold dt A) with phi(z) = (exp(z) - 1) / z, the exact zero-order hold; 0: Bbar = dt B. On
        another grid the exponents of A are those of its steps, and hold makes them those of the training's."""
        if self.hold is None:
            return 0.0
        return self.hold[0] if order.column_major else self.hold[1]


def state_dtype(activations: torch.dtype) -> torch.dtype:
    """The precision of hidden states, parameters and accumulators."""
    return torch.float64 if activations == torch.float64 else torch.float32


def check(inputs: ScanInputs, settings: ScanSettings) -> None:
    """Refuse what does not fit together, by name."""
    batch, height, width, channels = inputs.x.shape
    K, dstate = len(settings.orders), inputs.A.shape[-1]
    rank = channels if inputs.dt_weight is None else inputs.dt_weight.shape[-1]
    grid = (batch, height, width, K)
    shapes: dict[str, tuple[int, ...]] = {
        "dt": (*grid, rank),
        "A": (K, channels, dstate),
        "B": (*grid, dstate),
        "C": (*grid, dstate),
        "D": (K, channels),
        "R": (K, channels, dstate),
        "dt_bias": (K, channels),
        "dt_weight": (K, channels, rank),
    }
    sizes = {"batch": batch, "H": height, "W": width, "E": channels, "N": dstate, "rank of dt": rank}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"geo_scan: {name} is {size}, expected at least 1")
    if not 1 <= K <= 8:
        raise ValueError(f"geo_scan: {K} scan orders, expected 1 to 8")
    for name, shape in shapes.items():
        tensor = getattr(inputs, name)
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise ValueError(f"geo_scan: {name} has shape {tuple(tensor.shape)}, expected {shape} for {K} orders")
        if tensor.device != inputs.x.device:
            raise ValueError(f"geo_scan: {name} is on {tensor.device}, x is on {inputs.x.device}")
        if name in ("dt", "B", "C") and tensor.dtype != inputs.x.dtype:
            raise ValueError(f"geo_scan: {name} is {tensor.dtype}, x is {inputs.x.dtype}; give them one precision")
    if settings.kind not in ("1d", "2d"):
        raise ValueError(f"geo_scan: kind is {settings.kind!r}, expected '1d' or '2d'")
    if settings.correction not in CORRECTIONS:
        raise ValueError(f"geo_scan: correction is {settings.correction!r}, expected one of {', '.join(CORRECTIONS)}")


def has_tangent(*tensors: torch.Tensor | None) -> bool:
    """Whether a derivative in forward mode is asked for, which operators of our own would lose without a word."""
    if forward_ad._current_level < 0:
        return False
    return any(tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)
