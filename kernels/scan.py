"""`geo_scan`, the one scan operator of the package, and the choice of the backend that computes it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from geomano_hpc.errors import BackendError, ConfigError
from geomano_hpc.kernels.orders import ScanOrder
from geomano_hpc.kernels.reference import geo_scan_reference, time_step

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BackendStatus:
    """Whether a backend can compute on this machine, and why or why not."""

    name: str
    available: bool
    reason: str


def backend_statuses() -> list[BackendStatus]:
    """Every backend, the best first."""
    return [
        BackendStatus("triton", False, "this version has no Triton kernel yet"),
        BackendStatus("cpu", False, "this version has no C++ kernel yet"),
        BackendStatus("reference", True, "plain torch, any device and precision; a loop over the grid, so slow"),
    ]


@lru_cache
def choose_backend(requested: str) -> str:
    """The backend to use. `auto` takes the best that is available and logs it once; a name is taken or refused."""
    statuses = {status.name: status for status in backend_statuses()}
    if requested == "auto":
        best = next(status for status in statuses.values() if status.available)
        logger.info("scan backend: %s (%s)", best.name, best.reason)
        return best.name
    if requested not in statuses:
        raise ConfigError(f"unknown scan backend {requested!r}; choose auto or one of {', '.join(statuses)}")
    if not statuses[requested].available:
        raise BackendError(f"scan backend {requested!r} is not available: {statuses[requested].reason}")
    return requested


def geo_scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    *,
    D: torch.Tensor,
    R: torch.Tensor | None,
    dt_bias: torch.Tensor,
    dt_weight: torch.Tensor | None = None,
    orders: Sequence[ScanOrder],
    kind: str,
    correction: str = "equation",
    backend: str = "auto",
) -> torch.Tensor:
    """Scan a grid in K orders with geometric correction and sum the results: Eqs. (1D, 2D GeoMamba-SSM).

    Args:
        x: input [B, H, W, E]
        dt: time step before bias and softplus, [B, H, W, K, E]; or [B, H, W, K, r] together with `dt_weight`
        A: continuous transition, negative [K, E, N]
        B, C: input and output coefficients [B, H, W, K, N]
        D: skip weight [K, E]
        R: geometric correction [K, E, N], or None for the vanilla SSM
        dt_bias: [K, E]
        dt_weight: expands a low-rank dt [K, E, r]
        orders: the K scan orders
        kind: "1d" (one sequence) or "2d" (along rows, then along columns)
        correction: "equation" subtracts R Bbar x from y, "state" from the hidden state

    Returns:
        y [B, H, W, E]
    """
    batch, height, width, channels = x.shape
    K, dstate = len(orders), A.shape[-1]
    rank = channels if dt_weight is None else dt_weight.shape[-1]
    grid = (batch, height, width, K)
    expected: list[tuple[str, torch.Tensor | None, tuple[int, ...]]] = [
        ("dt", dt, (*grid, rank)),
        ("A", A, (K, channels, dstate)),
        ("B", B, (*grid, dstate)),
        ("C", C, (*grid, dstate)),
        ("D", D, (K, channels)),
        ("R", R, (K, channels, dstate)),
        ("dt_bias", dt_bias, (K, channels)),
        ("dt_weight", dt_weight, (K, channels, rank)),
    ]
    for name, tensor, shape in expected:
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"geo_scan: {name} has shape {tuple(tensor.shape)}, expected {shape} for {K} orders")
    if kind not in ("1d", "2d"):
        raise ValueError(f"geo_scan: kind is {kind!r}, expected '1d' or '2d'")
    if correction not in ("equation", "state"):
        raise ValueError(f"geo_scan: correction is {correction!r}, expected 'equation' or 'state'")

    choose_backend(backend)  # one backend so far; refuses a name that is not there
    dt = time_step(dt, dt_weight, dt_bias)
    return geo_scan_reference(x, dt, A, B, C, D_KE=D, R_KEN=R, orders=orders, kind=kind, correction=correction)
