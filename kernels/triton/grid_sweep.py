"""Sweeps over a grid that leave the carries for the 2d backward, as the wavefront of grid_forward, without an output.

The states g and h run in scan order. The adjoint states run against it, from the last row and column:

    lam[i,j] = C[i,j] dy[i,j] + nu[i+1,j],   nu[i,j]  = Abar[i,j] lam[i,j]    up the column
    mu[i,j]  = lam[i,j] + eta[i,j+1],        eta[i,j] = Abar[i,j] mu[i,j]     left along the row

What stays is the row that enters each strip (h, or nu), and along the rows every few columns what enters there (g, or
eta). The strips are those of the backward.

Abar of a column may have an exponent of its own (`stretch`). On rings a row, or a column, begins with what grid_rings
has left for it in `closing`.

Axes: S strips, G groups of dstates, M dstates of a thread, BE channels, TH rows of a strip.
"""
# mypy: disable-error-code="no-untyped-def,assignment"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.arithmetic import LOG2E, closed, held, own_of, stretch_down, turned
from geomano_hpc.kernels.triton.wavefront import (
    begin_column,
    begin_rows,
    column_of,
    columns_of,
    count_of_column,
    counts_of_rows,
    has_begun,
    hold_of_dstates,
    load_dstates,
    load_weights,
    prepare,
    rows_of,
    rows_of_band,
    stacked,
)

_INTS = [
    "orders", "H", "W", "E", "batch", "blocks", "dt_row", "dt_direction", "B_row", "B_direction", "every", "edges",
    "stretch", "rings", "own_H", "own_W", "hold_H", "hold_W",
]  # fmt: skip
_POINTERS = ["x", "dt", "A", "B", "bias", "weight", "along", "across", "handed", "closing"]


@triton.jit(do_not_specialize=_INTS, do_not_specialize_on_alignment=_POINTERS)
def grid_sweep_kernel(
    x, dt, A, B, bias, weight, along, across, handed, closing,
    orders, H, W, E, batch, blocks, dt_row, dt_direction, B_row, B_direction, every, edges, stretch, rings,
    own_H, own_W, hold_H, hold_W,
    ADJOINT: tl.constexpr, RANK: tl.constexpr, N: tl.constexpr, SIDE: tl.constexpr, WIDE: tl.constexpr,
    TH: tl.constexpr, S: tl.constexpr, G: tl.constexpr, M: tl.constexpr, BE: tl.constexpr,
    STRETCHED: tl.constexpr, RINGS: tl.constexpr, OWN: tl.constexpr, HOLD: tl.constexpr,
):  # fmt: skip
    """The carries of every direction, in the layout of grid_backward: hor and ver, or with ADJOINT back_hor and
    back_ver (x is then dy, and B is C). WIDE are the channels of a block there, SIDE the columns of a tile.

    along [K, B, wide blocks, TI, TJ, N, TH, WIDE]: g before column SIDE * tj, or with `edges` in the place of TJ eta
    behind a segment of `every` columns. The states have every = SIDE: strips are SIDE columns apart, so that all store
    at the same step.
    across [K, B, wide blocks, TI, TJ, N, SIDE, WIDE]: h above, or nu below, a strip.
    handed [programs, max(H, W) + (3 SKEW + 1) S, M, G, BE]: as in grid_forward, with SKEW + 1 slots.
    RINGS: and g before the first column, h above the first row, eta behind the last column, nu below the last row.
    """
    SKEW: tl.constexpr = 1 if ADJOINT else SIDE
    program = tl.program_id(0)
    block = program % blocks
    b = program // blocks % batch
    k = program // (blocks * batch)
    corner, step_i, step_j, HT, WT = turned(orders, k, H, W)
    L = tl.maximum(H, W)
    strips = tl.cdiv(HT, TH)
    lead = 0
    if ADJOINT:  # from the other end; the last strip may hang over the grid, and comes first
        corner += (HT - 1) * step_i + (WT - 1) * step_j
        step_i = -step_i
        step_j = -step_j
        lead = strips * TH - HT
    strip = tl.arange(0, S)
    group = tl.arange(0, G)
    dstate = group[:, None] * M + tl.arange(0, M)[None, :]
    channel = tl.minimum(block * BE + tl.arange(0, BE), E - 1)  # those beyond the last compute as it does
    sample = b.to(tl.int64) * (H * W)
    x += sample * E
    dt += sample * dt_row + k.to(tl.int64) * dt_direction
    B += sample * B_row + k.to(tl.int64) * B_direction
    bias_e = tl.load(bias + k * E + channel)
    weights = load_weights(weight + k * E * RANK, channel, RANK)
    A_m = ()
    for m in tl.static_range(M):
        of_A = (k * E + channel)[None, :] * N + (group * M + m)[:, None]
        is_dstate = (group * M + m < N)[:, None] & (channel >= 0)[None, :]
        A_m = A_m + (tl.load(A + of_A, mask=is_dstate, other=0.0)[None, :, :] * LOG2E,)
    A_down_m = A_m
    if STRETCHED:
        down = stretch_down(orders, k, stretch)
        A_down_m = ()
        for m in tl.static_range(M):
            A_down_m = A_down_m + (A_m[m] * down,)
    hold, inverse_m = hold_of_dstates(orders, k, A_m, hold_H, hold_W, HOLD, M)
    ROW: tl.constexpr = M * G * BE
    between = (L + 2 * SKEW * S) * ROW
    handed += program.to(tl.int64) * (between + (SKEW + 1) * S * ROW)
    inner = group[None, :, None] * BE + tl.arange(0, BE)[None, None, :]
    own = strip[:, None, None] * ROW
    is_first = (strip == 0)[:, None, None]
    is_last = (strip == S - 1)[:, None, None]

    ACROSS: tl.constexpr = N * SIDE * WIDE
    ALONG: tl.constexpr = N * TH * WIDE
    wide = (k * batch + b).to(tl.int64) * tl.cdiv(E, WIDE) + block * BE // WIDE
    # Both orientations have room for as many tiles as the one with more.
    tiles = tl.maximum(tl.cdiv(H, TH) * tl.cdiv(W, SIDE), tl.cdiv(W, TH) * tl.cdiv(H, SIDE))
    across_row = tl.cdiv(WT, SIDE) * ACROSS
    across += wide * (tiles * ACROSS) + block * BE % WIDE
    along_row = tl.cdiv(WT, SIDE) * ALONG
    along_size = tiles * ALONG
    if ADJOINT:
        along_row = edges * ALONG
        along_size = tl.cdiv(L, TH) * along_row
    along += wide * along_size + block * BE % WIDE
    lane = tl.arange(0, BE)[None, None, :]
    columns_closed, rows_closed = 0, 0
    if RINGS:
        columns_closed, rows_closed = closed(orders, k, rings)
        closing += program.to(tl.int64) * (2 * L * ROW)
        # What the columns begin with, above the first strip; each strip of threads takes a column.
        first_strip = strips - 1 if ADJOINT else 0
        for some in range(0, WT * columns_closed, S):
            j = some + strip
            to = WT - 1 - j if ADJOINT else j
            entry = across + (first_strip * across_row + to // SIDE * ACROSS + to % SIDE * WIDE)[:, None, None] + lane
            for m in tl.static_range(M):
                dstates = group * M + m
                is_ring = tl.broadcast_to((j < WT)[:, None, None] & (dstates < N)[None, :, None], [S, G, BE])
                begins = tl.load(closing + (L + j)[:, None, None] * ROW + m * (G * BE) + inner, mask=is_ring)
                tl.store(entry + (dstates * (SIDE * WIDE))[None, :, None], begins, mask=is_ring)

    own_down, own_along = 0.0, 0.0
    if OWN:
        own_down, own_along = own_of(orders, k, own_H, own_W)

    for band in range(tl.cdiv(strips, S)):
        flow = begin_rows(closing, inner, band, lead, HT * rows_closed, RINGS, TH, S, G, M, BE)
        has_above = (strip > 0)[:, None, None] | (band + strip * 0 > 0)[:, None, None]
        closed_until = tl.where(band > 0, 0, WT * columns_closed)
        if OWN:
            counts, more_down = counts_of_rows(
                band, lead, HT - 1 if ADJOINT else 0, own_down, columns_closed, TH - 1 if ADJOINT else 0, TH, S
            )
        # The strips in the turned grid, and the one that a strip's last row enters.
        here = band * S + strip
        enters = here + 1
        if ADJOINT:
            here = strips - 1 - here
            enters = here - 1
        is_there = (here >= 0) & (here < strips)
        is_entered = (enters >= 0) & (enters < strips)
        if RINGS:
            behind = (WT - 1) // every if ADJOINT else 0
            first = (here * along_row + behind * ALONG)[:, None, None] + group[None, :, None] * (M * TH * WIDE) + lane
            of_strip = TH - 1 - tl.arange(0, TH) if ADJOINT else tl.arange(0, TH)
            first = along + (first[None, :, :, :] + (of_strip * WIDE)[:, None, None, None])
            is_ring = is_there & (rows_closed + strip * 0 > 0)
            for m in tl.static_range(M):
                is_ring_m = is_ring[None, :, None, None] & (group * M + m < N)[None, None, :, None]
                begins = stacked(flow[m * TH : (m + 1) * TH])
                tl.store(first + m * (TH * WIDE), begins, mask=tl.broadcast_to(is_ring_m, begins.shape))
        rows = rows_of_band(band, corner, step_i, HT, lead, TH, S)
        delta3, x3 = prepare(
            0, rows, has_begun(0, band, lead, TH, S, SKEW), x, dt, bias_e, weights, channel, step_j, WT, E, dt_row,
            RANK, TH, S, BE, SKEW, RINGS,
        )  # fmt: skip
        for t in range(WT + SKEW * (S - 1)):
            column = column_of(t, WT, S, SKEW) * step_j
            delta = rows_of(tl.broadcast_to(delta3[:, :, None, :], [TH, S, G, BE]))
            u3 = x3 if ADJOINT or HOLD > 0 else delta3 * x3
            u = rows_of(tl.broadcast_to(u3[:, :, None, :], [TH, S, G, BE]))
            if OWN:
                of_column = count_of_column(t, own_along, rows_closed, S, SKEW)
            at_B = (rows * B_row + (column * B_row)[None, :])[:, :, None, None] + dstate[None, None, :, :]
            B_m = columns_of(load_dstates(B + at_B, dstate, N, G * M))
            left = between + (t + 1) % (SKEW + 1) * (S * ROW) + own - ROW
            above = handed + tl.where(is_first, (t + SKEW * (S - 1)) * ROW, left) + inner
            below = handed + tl.where(is_last, t * ROW, between + t % (SKEW + 1) * (S * ROW) + own) + inner
            j = t - SKEW * strip
            is_column = (j >= 0) & (j < WT)
            if ADJOINT:
                j = WT - 1 - j
            entry = enters * across_row + j // SIDE * ACROSS + j % SIDE * WIDE
            entry = across + (entry[:, None, None] + group[None, :, None] * (M * SIDE * WIDE) + lane)
            # In front of the first column nobody has left anything yet, and eta would take it up.
            is_left = has_above & (t >= SKEW * strip)[:, None, None] if ADJOINT else has_above
            before = flow
            flow = ()
            for m in tl.static_range(M):
                B_i = rows_of(tl.broadcast_to(B_m[m][:, :, :, None], [TH, S, G, BE]))
                h = tl.load(above + m * (G * BE), mask=is_left, other=0.0)
                if RINGS:
                    h += begin_column(closing, inner, t, closed_until, L, m, S, G, M, BE)
                for i in tl.static_range(TH):
                    a = tl.exp2(delta[i] * A_m[m])
                    a_down = tl.exp2(delta[i] * A_down_m[m]) if STRETCHED else a
                    bx = B_i[i] * u[i]  # Bbar x, or C dy
                    if ADJOINT:
                        if OWN:
                            lam = bx + h
                            h = a_down * lam
                            flow = flow + (a * (before[m * TH + i] + (lam + more_down[i] * bx)),)
                        elif STRETCHED:
                            lam = bx + h
                            h = a_down * lam
                            flow = flow + (a * (before[m * TH + i] + lam),)
                        else:
                            h = a * (bx + h)  # nu, and eta = Abar (lam + eta[i,j+1])
                            flow = flow + (a * before[m * TH + i] + h,)
                    else:
                        if HOLD > 0:
                            bx *= held(delta[i], A_m[m], a, hold, inverse_m[m], HOLD)
                        if OWN:
                            counted = bx * counts[i]
                            g = a * before[m * TH + i] + counted * of_column
                            h = a_down * h + (g + own_along * counted)
                        else:
                            g = a * before[m * TH + i] + bx
                            h = a_down * h + g
                        flow = flow + (g,)
                is_kept = (is_column & is_entered)[:, None, None] & (group * M + m < N)[None, :, None]
                tl.store(entry + m * (SIDE * WIDE), h, mask=is_kept)
                tl.store(below + m * (G * BE), h)
            if ADJOINT:
                # Whether some strip is at such a column; every >= S, so that nothing below is negative.
                stores = (WT - 2 - t + 2 * every) % every >= every - S
                is_edge = is_column & is_there & (j % every == 0) & (j > 0)
                edge = j // every - 1
            else:
                stores = (t + 1) % SIDE == 0
                is_edge = is_column & is_there & (j + 1 < WT)
                edge = j // SIDE + 1
            if stores:
                start = (here * along_row + edge * ALONG)[:, None, None] + group[None, :, None] * (M * TH * WIDE) + lane
                for m in tl.static_range(M):
                    is_kept = is_edge[:, None, None] & (group * M + m < N)[None, :, None]
                    for i in tl.static_range(TH):
                        row = TH - 1 - i if ADJOINT else i
                        tl.store(along + start + (m * TH + row) * WIDE, flow[m * TH + i], mask=is_kept)
            tl.debug_barrier()
            delta3, x3 = prepare(
                t + 1, rows, has_begun(t + 1, band, lead, TH, S, SKEW), x, dt, bias_e, weights, channel, step_j, WT, E,
                dt_row, RANK, TH, S, BE, SKEW, RINGS,
            )  # fmt: skip
