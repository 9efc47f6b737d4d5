"""A scan of points that lie closer together, or farther apart, than those for which dt was learned.

A sum over points stands for an integral, in which each point counts for the cell around it. With one point to a cell
the scan reaches from the near end of the first cell to the far end of a point's own. Points that are s apart have cells
of size s. Each counts for s, and where the scan begins and ends (1 - s) / 2 of a cell is missing, which counts for the
first point and for a point's own. What subtracts R Bbar x is about the point's own cell, whatever its size now, and
stays. So with u = dt B x, S the scan along rows, T that along columns, and m = (1 - s) / 2 of their axes

    h = (T s_T + m_T) (S s_S + m_S) u        2D
    h = (S s + m) u                          1D

where the first point of S u counts for s + m, unless the axis is a ring.

Axes: B batch, H x W grid, E channels, N dstates, K scan directions.
"""

import math
from collections.abc import Callable

import torch

from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
from geomano_hpc.kernels.orders import ScanOrder
from geomano_hpc.kernels.reference import time_step

Scan = Callable[[ScanInputs, ScanSettings], torch.Tensor]
Pair = tuple[float, float]


def scan_on_spacing(inputs: ScanInputs, settings: ScanSettings, spacing: Pair, scan: Scan) -> torch.Tensor:
    """y of points at these distances along H and W, by scans of points at distance 1."""
    if not all(0 < one < math.inf for one in spacing):
        raise ValueError(f"geo_scan: spacing is {spacing}, expected two numbers above 0")
    orders = settings.orders
    along_K = [spacing[0] if order.column_major else spacing[1] for order in orders]
    A = inputs.A * inputs.A.new_tensor(along_K)[:, None, None]
    whole = inputs._replace(A=A, R=None)
    if settings.kind == "1d":
        missing_K = [_missing(one) for one in along_K]
        y = scan(whole._replace(B=inputs.B * _of_sequences(inputs.B, orders, along_K)), settings)
        return y + _of_the_point(inputs, settings, missing_K)
    H, W = (_of_lines(inputs.B, settings, spacing[axis], axis) for axis in (0, 1))
    y = scan(whole._replace(B=inputs.B * (H * W)), settings._replace(stretch=spacing[0] / spacing[1]))
    missing = [_missing(one) for one in spacing]
    if missing[0]:
        y = y + _scan_lines(inputs, settings, inputs.B * (W * missing[0]), spacing, 1, scan)
    if missing[1]:
        y = y + _scan_lines(inputs, settings, inputs.B * (H * missing[1]), spacing, 0, scan)
    return y + _of_the_point(inputs, settings, [missing[0] * missing[1]] * len(orders))


def _missing(spacing: float) -> float:
    """Of a cell of size 1, at one of its ends."""
    return (1 - spacing) / 2


def _of_lines(B: torch.Tensor, settings: ScanSettings, spacing: float, axis: int) -> torch.Tensor:
    """What points count for along an axis, by direction: [points, 1, K, 1] along H, [1, points, K, 1] along W."""
    found = B.new_full((B.shape[1 + axis], len(settings.orders)), spacing)
    if not settings.periodic[axis]:
        for k, order in enumerate(settings.orders):
            found[-1 if _backwards(order, axis) else 0, k] += _missing(spacing)
    return found[:, None, :, None] if axis == 0 else found[None, :, :, None]


def _of_sequences(B: torch.Tensor, orders: tuple[ScanOrder, ...], along_K: list[float]) -> torch.Tensor:
    """The same for sequences, which have one first point: [H, W, K, 1]."""
    found = B.new_tensor(along_K).expand(*B.shape[1:4]).clone()
    for k, (order, spacing) in enumerate(zip(orders, along_K, strict=True)):
        first = tuple(-1 if _backwards(order, axis) else 0 for axis in (0, 1))
        found[*first, k] += _missing(spacing)
    return found[..., None]


def _backwards(order: ScanOrder, axis: int) -> bool:
    return order.rows_backwards if axis == 0 else order.columns_backwards


def _scan_lines(
    inputs: ScanInputs, settings: ScanSettings, B: torch.Tensor, spacing: Pair, axis: int, scan: Scan
) -> torch.Tensor:
    """The scan along one axis alone, 0 for H and 1 for W, without D x: each line is a grid of one row."""

    def lines(grid: torch.Tensor) -> torch.Tensor:
        turned = grid if axis == 1 else grid.transpose(1, 2)
        return turned.flatten(0, 1)[:, None]

    orders = tuple(ScanOrder(columns_backwards=_backwards(order, axis)) for order in settings.orders)
    along = inputs._replace(
        x=lines(inputs.x),
        dt=lines(inputs.dt),
        A=inputs.A * spacing[axis],
        B=lines(B),
        C=lines(inputs.C),
        D=torch.zeros_like(inputs.D),
        R=None,
    )
    y = scan(along, ScanSettings(orders, "2d", "equation", periodic=(False, settings.periodic[axis])))
    batch, H, W, _ = inputs.x.shape
    return y.view(batch, H, W, -1) if axis == 1 else y.view(batch, W, H, -1).transpose(1, 2)


def _of_the_point(inputs: ScanInputs, settings: ScanSettings, own_K: list[float]) -> torch.Tensor:
    """What a point counts for itself: `own` C Bbar x of each direction, less R Bbar x, or C R Bbar x."""
    precision = inputs.A.dtype
    with torch.autocast(inputs.x.device.type, enabled=False):
        x, dt, B, C = (one.to(precision) for one in (inputs.x, inputs.dt, inputs.B, inputs.C))
        y = torch.zeros_like(x)
        for k, own in enumerate(own_K):
            if not own and inputs.R is None:
                continue
            weight = None if inputs.dt_weight is None else inputs.dt_weight[k : k + 1]
            delta = time_step(dt[..., k : k + 1, :], weight, inputs.dt_bias[k : k + 1])[..., 0, :]
            CB = C[..., k, :] * B[..., k, :]
            counts = own * CB.sum(-1, keepdim=True)
            if inputs.R is not None:
                counts = counts - (B[..., k, :] if settings.correction == "equation" else CB) @ inputs.R[k].T
            y = y + counts * delta * x
    return y.to(inputs.x.dtype)
