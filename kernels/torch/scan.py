"""The `torch` backend: the scan in vectorised plain torch, for machines without a compiler, on any device.

A block of channels of one direction at a time, so that its hidden states fit; the backward computes them again.
Axes: B batch, H x W grid (turned, so that the scan is row-major), N dstates, E channels of a block, K directions.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F

from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
from geomano_hpc.kernels.orders import ScanOrder
from geomano_hpc.kernels.reference import held
from geomano_hpc.kernels.torch.recurrence import Recurrence, held_slope

_STATES_AT_A_TIME = 2**20  # hidden states of a block: 4 MB in float32


def carries_size(inputs: ScanInputs, settings: ScanSettings) -> int:
    return 0  # the backward starts from the inputs


def forward(inputs: ScanInputs, settings: ScanSettings, keep_carries: bool) -> tuple[torch.Tensor, torch.Tensor]:
    precision = inputs.A.dtype
    y = torch.zeros(inputs.x.shape, dtype=precision, device=inputs.x.device)
    for block in _blocks(inputs, settings):
        y[..., block.channels] += block.order.turn_back(block.read_out())
        y[..., block.channels] += inputs.D[block.k, block.channels] * inputs.x[..., block.channels]
    return y.to(inputs.x.dtype), inputs.A.new_empty(0)


def backward(
    dy: torch.Tensor, inputs: ScanInputs, settings: ScanSettings, carries: torch.Tensor, needs_R: bool
) -> ScanInputs:
    precision = inputs.A.dtype
    grads = ScanInputs._make(
        None if t is None else torch.zeros(t.shape, dtype=precision, device=t.device) for t in inputs
    )
    dy = dy.to(precision)
    for block in _blocks(inputs, settings):
        block.add_gradients(dy, inputs, grads)
    grads = ScanInputs._make(None if g is None else g.to(t.dtype) for g, t in zip(grads, inputs, strict=True))  # type: ignore[union-attr]
    return grads if needs_R else grads._replace(R=None)


class _States(NamedTuple):
    """The recurrences along the rows and down the columns, and what they compute. In 1D there are no columns."""

    rows: Recurrence
    columns: Recurrence | None
    bx_BHWNE: torch.Tensor  # Bbar x
    g_BHWNE: torch.Tensor  # along the rows
    h_BHWNE: torch.Tensor  # down the columns
    read_BHWNE: torch.Tensor  # with what points count more for themselves


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

    def states(self) -> "_States":
        delta = F.softplus(self.raw_BHWE)[..., None, :]
        bx = self.B_BHWN1 * (delta * self.x_BHWE[..., None, :])
        if self.hold:
            bx = bx * held(delta * (self.hold * self.A_NE))
        exponent = delta * self.A_NE
        down, (own_down, own_along) = self.down, self.own
        if self.settings.kind == "1d":
            sequence = Recurrence(torch.exp(exponent).flatten(1, 2), 1, own=own_along)
            h, read = (t.view_as(bx) for t in sequence.states_and_read(bx.flatten(1, 2)))
            return _States(sequence, None, bx, h, h, read)
        columns_closed, rows_closed = self.settings.closed(self.order)
        exponent_down = exponent if down == 1.0 else delta * (down * self.A_NE)
        a = torch.exp(exponent)
        a_down = a if down == 1.0 else torch.exp(exponent_down)
        rows = Recurrence(a, 2, exponent if rows_closed else None, own_along)
        columns = Recurrence(a_down, 1, exponent_down if columns_closed else None, own_down)
        g, along = rows.states_and_read(bx)
        h, read = columns.states_and_read(along)
        return _States(rows, columns, bx, g, h, read)

    @property
    def down(self) -> float:
        return self.settings.stretch_down(self.order)

    @property
    def own(self) -> tuple[float, float]:
        return self.settings.own_of(self.order)

    @property
    def hold(self) -> float:
        return self.settings.hold_of(self.order)

    def read_out(self) -> torch.Tensor:
        """C h - R Bbar x or C (h - R Bbar x), summed over the dstates."""
        _, _, bx, _, _, h = self.states()
        if self.R_NE is None:
            return (self.C_BHWN1 * h).sum(-2)
        if self.settings.correction == "equation":
            return (self.C_BHWN1 * h - self.R_NE * bx).sum(-2)
        return (self.C_BHWN1 * (h - self.R_NE * bx)).sum(-2)

    def add_gradients(self, dy_BHWE: torch.Tensor, inputs: ScanInputs, grads: ScanInputs) -> None:
        rows, columns, bx, g, h, read = self.states()
        dy = self.order.turn(dy_BHWE[..., self.channels])[..., None, :]
        if columns is None:
            mu, dbx = (t.view_as(h) for t in rows.adjoints_of_read((self.C_BHWN1 * dy).flatten(1, 2)))
            dexponent = rows.a.view_as(h) * mu * rows.before(h.flatten(1, 2)).view_as(h)
        else:
            lam, dalong = columns.adjoints_of_read(self.C_BHWN1 * dy)
            mu, dbx = rows.adjoints_of_read(dalong)
            if self.down == 1.0:
                dexponent = rows.a * (lam * columns.before(h) + mu * rows.before(g))
            else:
                dexponent = self.down * columns.a * lam * columns.before(h) + rows.a * mu * rows.before(g)
        if self.R_NE is not None:
            corrected_dy = dy if self.settings.correction == "equation" else self.C_BHWN1 * dy
            dbx = dbx - self.R_NE * corrected_dy
            read = read if self.settings.correction == "equation" else read - self.R_NE * bx
            grads.R[self.k, self.channels] -= (corrected_dy * bx).sum((0, 1, 2)).T  # type: ignore[index]
        delta = F.softplus(self.raw_BHWE)
        if self.hold:
            z = delta[..., None, :] * (self.hold * self.A_NE)
            u_BHW1E = (delta * self.x_BHWE)[..., None, :]
            dexponent = dexponent + self.hold * held_slope(z) * dbx * self.B_BHWN1 * u_BHW1E
            dbx = dbx * held(z)  # of B dt x from here on
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
