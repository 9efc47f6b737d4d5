"""GeoMamba-SSM in plain torch, short enough to read beside the equations: the judge of every other backend.

Axes: B batch, H x W grid, L = H * W, E channels, N dstates, K scan directions, r rank of the time step.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from geomano_hpc.kernels.inputs import ScanSettings

Recurrence = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]  # of a and b along an axis


def linear_recurrence(a: torch.Tensor, b: torch.Tensor, axis: int) -> torch.Tensor:
    """h[t] = a[t] h[t-1] + b[t] along an axis. `unbind`, since the gradient of indexing is quadratic."""
    states = []
    h = None
    for a_t, b_t in zip(a.unbind(axis), b.unbind(axis), strict=True):
        h = b_t if h is None else torch.addcmul(b_t, a_t, h)
        states.append(h)
    return torch.stack(states, dim=axis)


def ring_recurrence(a: torch.Tensor, b: torch.Tensor, axis: int, recurrence: Recurrence) -> torch.Tensor:
    """h[t] = a[t] h[t-1] + b[t] on a ring: the state before the first step is the one after the last.

    From a zero start h ends at e, and the products of a are p: h0 = e + p h0, so h0 = e / (1 - p).
    """
    from_zero, through = recurrence(a, b, axis), a.cumprod(axis)
    last = a.shape[axis] - 1
    h0 = from_zero.narrow(axis, last, 1) / (1 - through.narrow(axis, last, 1))
    return from_zero + through * h0


def geo_scan_reference(
    x_BHWE: torch.Tensor,
    dt_BHWKE: torch.Tensor,
    A_KEN: torch.Tensor,
    B_BHWKN: torch.Tensor,
    C_BHWKN: torch.Tensor,
    *,
    D_KE: torch.Tensor,
    R_KEN: torch.Tensor | None,
    settings: ScanSettings,
    recurrence: Recurrence = linear_recurrence,
) -> torch.Tensor:
    """The merged y of Eq. (1D GeoMamba-SSM) or Eq. (2D GeoMamba-SSM); dt is the time step after softplus."""
    y_BHWE = torch.zeros_like(x_BHWE)
    for k, order in enumerate(settings.orders):
        # N before E, so that the innermost axis is long and contiguous.
        x = order.turn(x_BHWE)[..., None, :]
        dt = order.turn(dt_BHWKE[..., k, :])[..., None, :]
        B = order.turn(B_BHWKN[..., k, :])[..., :, None]
        C = order.turn(C_BHWKN[..., k, :])[..., :, None]

        Abar = torch.exp(dt * A_KEN[k].T)
        Bbar_x = B * (dt * x)
        hold, own = settings.hold_of(order), settings.own_of(order)
        if hold:
            Bbar_x = Bbar_x * held(dt * (hold * A_KEN[k].T))
        if settings.kind == "1d":
            h = recursion_1d(Abar, Bbar_x, recurrence, own[1])
        else:
            down = settings.stretch_down(order)
            Abar_down = Abar if down == 1.0 else torch.exp(dt * (down * A_KEN[k].T))
            h = recursion_2d(Abar, Bbar_x, recurrence, Abar_down, settings.closed(order), own)
        if R_KEN is None:
            y = (C * h).sum(-2)
        elif settings.correction == "equation":
            y = (C * h - R_KEN[k].T * Bbar_x).sum(-2)
        else:
            y = (C * (h - R_KEN[k].T * Bbar_x)).sum(-2)
        y_BHWE = y_BHWE + order.turn_back(y) + D_KE[k] * x_BHWE
    return y_BHWE


def recursion_1d(
    Abar_BHWNE: torch.Tensor,
    Bbar_x_BHWNE: torch.Tensor,
    recurrence: Recurrence = linear_recurrence,
    own: float = 0.0,
) -> torch.Tensor:
    """h[t] = Abar[t] h[t-1] + Bbar[t] x[t] over the row-major sequence. Ours: `own`, see ScanSettings.own_of."""
    a, b = Abar_BHWNE.flatten(1, 2), Bbar_x_BHWNE.flatten(1, 2)
    h = recurrence(a, first_counts_more(b, own, 1), 1)
    return (h + own * b if own else h).reshape(Abar_BHWNE.shape)


def recursion_2d(
    Abar_BHWNE: torch.Tensor,
    Bbar_x_BHWNE: torch.Tensor,
    recurrence: Recurrence = linear_recurrence,
    Abar_down_BHWNE: torch.Tensor | None = None,
    closed: tuple[bool, bool] = (False, False),
    own: tuple[float, float] = (0.0, 0.0),
) -> torch.Tensor:
    """g[i,j] = Abar[i,j] g[i,j-1] + Bbar[i,j] x[i,j] along the row, then h[i,j] = Abar[i,j] h[i-1,j] + g[i,j].

    Ours: `Abar_down` in the second one where the spacing of rows is not that of columns, columns or rows (`closed`)
    that are rings, and points that count more for themselves (`own`, see ScanSettings.own_of).
    """
    Abar_down_BHWNE = Abar_BHWNE if Abar_down_BHWNE is None else Abar_down_BHWNE

    def along(a: torch.Tensor, b: torch.Tensor, axis: int) -> torch.Tensor:
        is_ring, more = closed[axis - 1], own[axis - 1]
        if is_ring:
            states = ring_recurrence(a, b, axis, recurrence)
        else:
            states = recurrence(a, first_counts_more(b, more, axis), axis)
        return states + more * b if more else states

    return along(Abar_down_BHWNE, along(Abar_BHWNE, Bbar_x_BHWNE, 2), 1)


def first_counts_more(b: torch.Tensor, more: float, axis: int) -> torch.Tensor:
    """b with its first one along an axis 1 + more times."""
    if not more:
        return b
    rest = b.narrow(axis, 1, b.shape[axis] - 1)
    return torch.cat([b.narrow(axis, 0, 1) * (1 + more), rest], dim=axis)


def held(z: torch.Tensor) -> torch.Tensor:
    """phi(z) = (exp(z) - 1) / z: Bbar = dt B phi(dt A) is the exact zero-order hold of the appendix."""
    near = z.abs() < torch.finfo(z.dtype).eps ** 0.5  # where the quotient's gradient loses its digits
    far = torch.where(near, 1.0, z)
    return torch.where(near, 1 + z / 2, torch.expm1(far) / far)


def time_step(dt: torch.Tensor, dt_weight_KEr: torch.Tensor | None, dt_bias_KE: torch.Tensor) -> torch.Tensor:
    """softplus(dt + bias), with dt (B,H,W,K,E) or as low-rank factors (B,H,W,K,r) and (K,E,r)."""
    if dt_weight_KEr is not None:
        dt = torch.einsum("bhwkr,ker->bhwke", dt, dt_weight_KEr)
    return F.softplus(dt + dt_bias_KE)
