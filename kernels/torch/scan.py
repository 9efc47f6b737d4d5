"""The `torch` backend: the scan in vectorised plain torch, for machines without a compiler, on any device.

A block of channels of one direction at a time, so that its hidden states fit; the backward computes them again.
Axes: B batch, H x W grid (turned, so that the scan is row-major), N dstates, E channels of a block, K directions.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F

from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings, without_geometry
from geomano_hpc.kernels.orders import ScanOrder

_STATES_AT_A_TIME = 2**20  # hidden states of a block: 4 MB in float32
_LONG = 256  # an axis longer than this is cut into chunks that advance together


def carries_size(inputs: ScanInputs, settings: ScanSettings) -> int:
    return 0  # the backward starts from the inputs


def forward(inputs: ScanInputs, settings: ScanSettings, keep_carries: bool) -> tuple[torch.Tensor, torch.Tensor]:
    without_geometry(settings, "torch")
    precision = inputs.A.dtype
    y = torch.zeros(inputs.x.shape, dtype=precision, device=inputs.x.device)
    for block in _blocks(inputs, settings):
        y[..., block.channels] += block.order.turn_back(block.read_out(*block.states()))
        y[..., block.channels] += inputs.D[block.k, block.channels] * inputs.x[..., block.channels]
    return y.to(inputs.x.dtype), inputs.A.new_empty(0)


def backward(
    dy: torch.Tensor, inputs: ScanInputs, settings: ScanSettings, carries: torch.Tensor, needs_R: bool
) -> ScanInputs:
    without_geometry(settings, "torch")
    precision = inputs.A.dtype
    grads = ScanInputs._make(
        None if t is None else torch.zeros(t.shape, dtype=precision, device=t.device) for t in inputs
    )
    dy = dy.to(precision)
    for block in _blocks(inputs, settings):
        block.add_gradients(dy, inputs, grads)
    grads = ScanInputs._make(None if g is None else g.to(t.dtype) for g, t in zip(grads, inputs, strict=True))  # type: ignore[union-attr]
    return grads if needs_R else grads._replace(R=None)


class _Block(NamedTuple):
    """Some channels of one direction, everything turned so that the scan is row-major from the top left."""

    k: int
    order: ScanOrder
    channels: slice
    settings: ScanSettings
    raw_BHWE: torch.Tensor  # dt + bias, before the softplus
    x_BHWE: torch.Tensor
    A_NE: torch.Tensor
    R_NE: torch.Tensor | None
    B_BHWN1: torch.Tensor
    C_BHWN1: torch.Tensor

    def states(self) -> tuple[torch.Tensor, ...]:
        """Abar, Bbar x, g and h; in 1D g is h."""
        delta = F.softplus(self.raw_BHWE)[..., None, :]
        a = torch.exp(delta * self.A_NE)
        bx = self.B_BHWN1 * (delta * self.x_BHWE[..., None, :])
        if self.settings.kind == "1d":
            h = _recurrence(a.flatten(1, 2), bx.flatten(1, 2), axis=1).view_as(a)
            return a, bx, h, h
        g = _recurrence(a, bx, axis=2)
        return a, bx, g, _recurrence(a, g, axis=1)

    def read_out(self, a: torch.Tensor, bx: torch.Tensor, g: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        """C h - R Bbar x or C (h - R Bbar x), summed over the dstates."""
        if self.R_NE is None:
            return (self.C_BHWN1 * h).sum(-2)
        if self.settings.correction == "equation":
            return (self.C_BHWN1 * h - self.R_NE * bx).sum(-2)
        return (self.C_BHWN1 * (h - self.R_NE * bx)).sum(-2)

    def add_gradients(self, dy_BHWE: torch.Tensor, inputs: ScanInputs, grads: ScanInputs) -> None:
        a, bx, g, h = self.states()
        dy = self.order.turn(dy_BHWE[..., self.channels])[..., None, :]
        if self.settings.kind == "1d":
            seq = (a.flatten(1, 2), (self.C_BHWN1 * dy).flatten(1, 2))
            lam = mu = _adjoint_recurrence(*seq, axis=1).view_as(a)
            dexponent = a * lam * _before(h.flatten(1, 2), axis=1).view_as(a)
        else:
            lam = _adjoint_recurrence(a, self.C_BHWN1 * dy, axis=1)
            mu = _adjoint_recurrence(a, lam, axis=2)
            dexponent = a * (lam * _before(h, axis=1) + mu * _before(g, axis=2))
        dbx, read = mu, h
        if self.R_NE is not None:
            corrected_dy = dy if self.settings.correction == "equation" else self.C_BHWN1 * dy
            dbx = mu - self.R_NE * corrected_dy
            read = h if self.settings.correction == "equation" else h - self.R_NE * bx
            grads.R[self.k, self.channels] -= (corrected_dy * bx).sum((0, 1, 2)).T  # type: ignore[index]
        delta = F.softplus(self.raw_BHWE)
        du = (self.B_BHWN1 * dbx).sum(-2)
        ddelta = du * self.x_BHWE + (dexponent * self.A_NE).sum(-2)
        draw = ddelta * torch.sigmoid(self.raw_BHWE)

        k, back, e = self.k, self.order.turn_back, self.channels
        grads.A[k, e] += (dexponent * delta[..., None, :]).sum((0, 1, 2)).T
        grads.B[..., k, :] += back((dbx * (delta * self.x_BHWE)[..., None, :]).sum(-1))
        grads.C[..., k, :] += back((dy * read).sum(-1))
        grads.D[k, e] += (dy_BHWE[..., e] * inputs.x[..., e]).sum((0, 1, 2))
        grads.dt_bias[k, e] += draw.sum((0, 1, 2))
        grads.x[..., e] += back(du * delta) + inputs.D[k, e] * dy_BHWE[..., e]
        draw = back(draw)
        if inputs.dt_weight is None:
            grads.dt[..., k, e] += draw
        else:
            grads.dt[..., k, :] += draw @ inputs.dt_weight[k, e]
            low = inputs.dt[..., k, :].to(draw.dtype)
            grads.dt_weight[k, e] += draw.flatten(0, 2).T @ low.flatten(0, 2)  # type: ignore[index]


def _blocks(inputs: ScanInputs, settings: ScanSettings) -> Iterator[_Block]:
    precision, channels, dstate = inputs.A.dtype, inputs.x.shape[-1], inputs.A.shape[-1]
    width = max(1, _STATES_AT_A_TIME // (inputs.x[..., 0].numel() * dstate))
    for k, order in enumerate(settings.orders):
        B, C = (order.turn(t[..., k, :].to(precision))[..., None] for t in (inputs.B, inputs.C))
        for first in range(0, channels, width):
            e = slice(first, min(first + width, channels))
            if inputs.dt_weight is None:
                raw = inputs.dt[..., k, e].to(precision)
            else:
                raw = inputs.dt[..., k, :].to(precision) @ inputs.dt_weight[k, e].T
            yield _Block(
                k,
                order,
                e,
                settings,
                order.turn(raw + inputs.dt_bias[k, e]),
                order.turn(inputs.x[..., e].to(precision)),
                inputs.A[k, e].T,
                None if inputs.R is None else inputs.R[k, e].T,
                B,
                C,
            )


def _recurrence(a: torch.Tensor, b: torch.Tensor, axis: int) -> torch.Tensor:
    """h[t] = a[t] h[t-1] + b[t]. A long axis is cut into chunks: they advance together from zero, then each adds what
    its product of a lets through of the state before it. About 2 sqrt(length) steps instead of length."""
    length = a.shape[axis]
    if length <= _LONG:
        h = b.clone()
        for t in range(1, length):
            h.select(axis, t).addcmul_(a.select(axis, t), h.select(axis, t - 1))
        return h
    steps = math.isqrt(length - 1) + 1
    chunks = -(-length // steps)
    a, h = (_cut(t, axis, chunks, steps, fill) for t, fill in ((a, 1.0), (b, 0.0)))
    through = a.clone()
    for t in range(1, steps):
        h.select(axis + 1, t).addcmul_(a.select(axis + 1, t), h.select(axis + 1, t - 1))
        through.select(axis + 1, t).mul_(through.select(axis + 1, t - 1))
    for chunk in range(1, chunks):
        state = h.select(axis, chunk - 1).select(axis, steps - 1).unsqueeze(axis)
        h.select(axis, chunk).addcmul_(through.select(axis, chunk), state)
    return h.flatten(axis, axis + 1).narrow(axis, 0, length)


def _cut(tensor: torch.Tensor, axis: int, chunks: int, steps: int, fill: float) -> torch.Tensor:
    shape = list(tensor.shape)
    shape[axis] = chunks * steps
    whole = tensor.new_full(shape, fill)
    whole.narrow(axis, 0, tensor.shape[axis]).copy_(tensor)
    return whole.unflatten(axis, (chunks, steps))


def _adjoint_recurrence(a: torch.Tensor, b: torch.Tensor, axis: int) -> torch.Tensor:
    """lambda[t] = b[t] + a[t+1] lambda[t+1]: the same recurrence, backwards and with a one step later."""
    later = torch.cat([a.narrow(axis, 1, a.shape[axis] - 1), torch.ones_like(a.narrow(axis, 0, 1))], axis)
    return _recurrence(later.flip(axis), b.flip(axis), axis).flip(axis)


def _before(states: torch.Tensor, axis: int) -> torch.Tensor:
    """The state one step earlier, zero at the start."""
    start = torch.zeros_like(states.narrow(axis, 0, 1))
    return torch.cat([start, states.narrow(axis, 0, states.shape[axis] - 1)], axis)
