"""`geo_scan`, the one scan operator of the package.

Axes: B batch, H x W grid, E channels, N dstates, K scan directions, r rank of the time step.
"""

from collections.abc import Sequence

import torch

from geomano_hpc.kernels.autocast import autocast_dtype
from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings, check, has_tangent, state_dtype
from geomano_hpc.kernels.loop import loop_recurrence
from geomano_hpc.kernels.operator import geo_scan_op, geometry
from geomano_hpc.kernels.orders import ScanOrder, order_set
from geomano_hpc.kernels.reference import Recurrence, geo_scan_reference, linear_recurrence, time_step
from geomano_hpc.kernels.spacing import on_spacing


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
    orders: str | Sequence[ScanOrder],
    kind: str,
    correction: str = "equation",
    spacing: tuple[float, float] = (1.0, 1.0),
    periodic: tuple[bool, bool] = (False, False),
    exact_hold: bool = False,
    backend: str = "auto",
) -> torch.Tensor:
    """Scan a grid in K orders with geometric correction and sum the results: Eqs. (1D, 2D GeoMamba-SSM).

    Hidden states, parameters and sums are float32, or float64 where x is; y has the precision of x. Under autocast
    x, dt, B and C are converted to its precision.

    Args:
        x: input [B, H, W, E]
        dt: time step before bias and softplus, [B, H, W, K, E]; or [B, H, W, K, r] together with `dt_weight`
        A: continuous transition, negative [K, E, N]
        B: input coefficients [B, H, W, K, N]
        C: output coefficients [B, H, W, K, N]
        D: skip weight [K, E]
        R: geometric correction [K, E, N], or None for the vanilla SSM
        dt_bias: [K, E]
        dt_weight: expands a low-rank dt [K, E, r]
        orders: the K scan orders, 1 to 8, or the name of a set: "paper" and "corners" (K = 4), "sequence" (K = 2)
        kind: "1d" (one sequence) or "2d" (along rows, then along columns)
        correction: "equation" subtracts R Bbar x from y, "state" from the hidden state, "input" R x from the hidden
            state (Algorithm 2, line 24, as printed)
        spacing: distance of the points along H and along W, in units of that for which dt was learned: the states decay
            by exp(spacing dt A) from point to point, and a point counts for its length (1d) or area (2d)
        periodic: along H, along W the hidden states of kind "2d" are closed on the ring: a row, or column, begins with
            the state with which it ends
        exact_hold: Bbar is the zero-order hold of the appendix, (exp(dt A) - 1) / A B, and not dt B
        backend: "auto", "triton", "cpu", "torch" or "reference"; "loop" is the reference in a form for exporters

    Returns:
        y [B, H, W, E]

    Examples:
        A network of one's own computes dt, B and C from x; here they are random.

        >>> import torch
        >>> from geomano_hpc import geo_scan
        >>> batch, height, width, channels, dstate, directions = 2, 12, 16, 32, 4, 4
        >>> x = torch.randn(batch, height, width, channels)
        >>> dt = torch.randn(batch, height, width, directions, channels)
        >>> B, C = torch.randn(2, batch, height, width, directions, dstate)
        >>> A = -torch.rand(directions, channels, dstate)
        >>> D, dt_bias = torch.ones(directions, channels), torch.zeros(directions, channels)
        >>> y = geo_scan(x, dt, A, B, C, D=D, R=None, dt_bias=dt_bias, orders="paper", kind="2d")
        >>> y.shape
        torch.Size([2, 12, 16, 32])
    """
    orders = order_set(orders) if isinstance(orders, str) else tuple(orders)
    lowered = autocast_dtype(x.device.type)
    if lowered is not None and x.dtype != torch.float64:  # autocast leaves float64 alone
        x, dt, B, C = (tensor.to(lowered) for tensor in (x, dt, B, C))
    precision = state_dtype(x.dtype)
    A, D, dt_bias = A.to(precision), D.to(precision), dt_bias.to(precision)
    R = None if R is None else R.to(precision)
    dt_weight = None if dt_weight is None else dt_weight.to(precision)
    inputs = ScanInputs(x, dt, A, B, C, D, R, dt_bias, dt_weight)
    settings = ScanSettings(orders, kind, correction, periodic=_rings(kind, periodic, x.shape[1], x.shape[2]))
    check(inputs, settings)
    if correction == "input":  # which needs no hidden states, and so no kernel
        inputs, settings = inputs._replace(R=None), settings._replace(correction="equation")
    if exact_hold:
        settings = settings._replace(hold=(1.0, 1.0))
    if spacing != (1.0, 1.0):
        inputs, settings = on_spacing(inputs, settings, spacing)
    y = _scan(inputs, settings, backend)
    return y if R is None or inputs.R is not None else y - _duplicated_input(x, C, R)


def _scan(inputs: ScanInputs, settings: ScanSettings, backend: str) -> torch.Tensor:
    if backend in ("reference", "loop"):
        return _reference(inputs, settings, loop_recurrence if backend == "loop" else linear_recurrence)
    if has_tangent(*inputs):
        raise NotImplementedError(f"geo_scan: backend {backend!r} has no forward-mode derivative; take 'reference'")
    needs_grad = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs)
    options = (settings.kind, settings.correction, backend, needs_grad, *geometry(settings))
    y, _ = geo_scan_op(*inputs, [order.code for order in settings.orders], *options)
    return y


def _duplicated_input(x: torch.Tensor, C: torch.Tensor, R: torch.Tensor) -> torch.Tensor:
    """The sum over directions and dstates of C R x, which is one matrix product."""
    R_of_all = R.to(C.dtype).movedim(1, -1).flatten(0, 1)  # [K N, E]
    return x * (C.flatten(-2) @ R_of_all)


def _rings(kind: str, periodic: tuple[bool, bool], height: int, width: int) -> tuple[bool, bool]:
    """An axis of one point is no ring."""
    if kind == "1d" and any(periodic):
        raise ValueError("geo_scan: a 1d scan of a plane has no rings: its rows follow each other; take kind '2d'")
    return periodic[0] and height > 1, periodic[1] and width > 1


def _reference(inputs: ScanInputs, settings: ScanSettings, recurrence: Recurrence) -> torch.Tensor:
    """Plain torch, in the precision of the states, with torch's own gradients."""
    precision = inputs.A.dtype
    with torch.autocast(inputs.x.device.type, enabled=False):
        y = geo_scan_reference(
            inputs.x.to(precision),
            time_step(inputs.dt.to(precision), inputs.dt_weight, inputs.dt_bias),
            inputs.A,
            inputs.B.to(precision),
            inputs.C.to(precision),
            D_KE=inputs.D,
            R_KEN=inputs.R,
            settings=settings,
            recurrence=recurrence,
        )
    return y.to(inputs.x.dtype)
