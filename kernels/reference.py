"""GeoMamba-SSM in plain torch, short enough to read beside the equations: the judge of every other backend.

Axes: B batch, H x W grid, L = H * W, E channels, N dstates, K scan directions, r rank of the time step.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from geomano_hpc.kernels.orders import ScanOrder

Recurrence = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]  # of a and b along an axis


def linear_recurrence(a: torch.Tensor, b: torch.Tensor, axis: int) -> torch.Tensor:
    """h[t] = a[t] h[t-1] + b[t] along an axis. `unbind`, since the gradient of indexing is quadratic."""
    states = []
    h = None
    for a_t, b_t in zip(a.unbind(axis), b.unbind(axis), strict=True):
        h = b_t if h is None else torch.addcmul(b_t, a_t, h)
        states.append(h)
    return torch.stack(states, dim=axis)


def geo_scan_reference(
    x_BHWE: torch.Tensor,
    dt_BHWKE: torch.Tensor,
    A_KEN: torch.Tensor,
    B_BHWKN: torch.Tensor,
    C_BHWKN: torch.Tensor,
    *,
    D_KE: torch.Tensor,
    R_KEN: torch.Tensor | None,
    orders: Sequence[ScanOrder],
    kind: str,
    correction: str,
    recurrence: Recurrence = linear_recurrence,
) -> torch.Tensor:
    """The merged y of Eq. (1D GeoMamba-SSM) or Eq. (2D GeoMamba-SSM); dt is the time step after softplus."""
    y_BHWE = torch.zeros_like(x_BHWE)
    recursion = {"1d": recursion_1d, "2d": recursion_2d}[kind]
    for k, order in enumerate(orders):
        # N before E, so that the innermost axis is long and contiguous.
        x = order.turn(x_BHWE)[..., None, :]
        dt = order.turn(dt_BHWKE[..., k, :])[..., None, :]
        B = order.turn(B_BHWKN[..., k, :])[..., :, None]
        C = order.turn(C_BHWKN[..., k, :])[..., :, None]

        Abar = torch.exp(dt * A_KEN[k].T)
        Bbar_x = B * (dt * x)
        h = recursion(Abar, Bbar_x, recurrence)
        if R_KEN is None:
            y = (C * h).sum(-2)
        elif correction == "equation":
            y = (C * h - R_KEN[k].T * Bbar_x).sum(-2)
        else:
            y = (C * (h - R_KEN[k].T * Bbar_x)).sum(-2)
        y_BHWE = y_BHWE + order.turn_back(y) + D_KE[k] * x_BHWE
    return y_BHWE


def recursion_1d(
    Abar_BHWNE: torch.Tensor, Bbar_x_BHWNE: torch.Tensor, recurrence: Recurrence = linear_recurrence
) -> torch.Tensor:
    """h[t] = Abar[t] h[t-1] + Bbar[t] x[t] over the row-major sequence."""
    return recurrence(Abar_BHWNE.flatten(1, 2), Bbar_x_BHWNE.flatten(1, 2), 1).reshape(Abar_BHWNE.shape)


def recursion_2d(
    Abar_BHWNE: torch.Tensor, Bbar_x_BHWNE: torch.Tensor, recurrence: Recurrence = linear_recurrence
) -> torch.Tensor:
    """g[i,j] = Abar[i,j] g[i,j-1] + Bbar[i,j] x[i,j] along the row, then h[i,j] = Abar[i,j] h[i-1,j] + g[i,j]."""
    g = recurrence(Abar_BHWNE, Bbar_x_BHWNE, 2)
    return recurrence(Abar_BHWNE, g, 1)


def time_step(dt: torch.Tensor, dt_weight_KEr: torch.Tensor | None, dt_bias_KE: torch.Tensor) -> torch.Tensor:
    """softplus(dt + bias), with dt (B,H,W,K,E) or as low-rank factors (B,H,W,K,r) and (K,E,r)."""
    if dt_weight_KEr is not None:
        dt = torch.einsum("bhwkr,ker->bhwke", dt, dt_weight_KEr)
    return F.softplus(dt + dt_bias_KE)
