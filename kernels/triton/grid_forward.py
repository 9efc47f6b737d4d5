"""The 2d scan forwards (Algorithm 2) as a wavefront inside one program.

A program takes one direction, one sample and a block of channels. Its warps are strips of TH rows, its lanes are groups
of dstates x channels, and a strip's rows are registers. At step t strip s works at column t - s: it carries g along
its rows in registers and takes h of the row above from the strip above, which was there one step earlier and left its
last row in memory that only this program sees. Grids with more rows than the strips have are taken in bands.

On rings a row, or a column, begins with what grid_rings has left for it in `closing`.

Axes: S strips, G groups of dstates, M dstates of a thread, BE channels, TH rows of a strip.
"""
# mypy: disable-error-code="no-untyped-def,assignment,var-annotated"
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
    "orders", "H", "W", "E", "batch", "blocks", "dt_row", "dt_direction", "B_row", "B_direction", "stretch", "rings",
    "own_H", "own_W", "hold_H", "hold_W",
]  # fmt: skip
_POINTERS = ["x", "dt", "A", "B", "C", "D", "R", "bias", "weight", "y_part", "handed", "closing"]


@triton.jit(do_not_specialize=_INTS, do_not_specialize_on_alignment=_POINTERS)
def grid_forward_kernel(
    x, dt, A, B, C, D, R, bias, weight, y_part, handed, closing,
    orders, H, W, E, batch, blocks, dt_row, dt_direction, B_row, B_direction,
    stretch, rings, own_H, own_W, hold_H, hold_W,
    CORRECTION: tl.constexpr, RANK: tl.constexpr, N: tl.constexpr,
    TH: tl.constexpr, S: tl.constexpr, G: tl.constexpr, M: tl.constexpr, BE: tl.constexpr,
    STRETCHED: tl.constexpr, RINGS: tl.constexpr, OWN: tl.constexpr, HOLD: tl.constexpr,
):  # fmt: skip
    """y_part [K, B, points, E] of every direction.

    handed [programs, max(H, W) + 4 S, M, G, BE]: the last row of a band, column by column, and then the strips' last
    rows of h, in two slots in turns. STRETCHED: `stretch` is not 1. RINGS: closing is that of grid_rings. OWN: points
    count own_H, own_W more for themselves; g is then that of what enters its row (counts_of_rows). HOLD: Bbar is an
    exact zero-order hold; with 1 its exponents are those of Abar, with 2 hold_H or hold_W times these.
    """
    program = tl.program_id(0)
    block = program % blocks
    b = program // blocks % batch
    k = program // (blocks * batch)
    corner, step_i, step_j, HT, WT = turned(orders, k, H, W)
    L = tl.maximum(H, W)
    strip = tl.arange(0, S)
    group = tl.arange(0, G)
    dstate = group[:, None] * M + tl.arange(0, M)[None, :]
    lane = block * BE + tl.arange(0, BE)
    channel = tl.minimum(lane, E - 1)  # those beyond the last compute as it does, and write nothing
    sample = b.to(tl.int64) * (H * W)
    x += sample * E
    y_part += (k.to(tl.int64) * batch * (H * W) + sample) * E
    dt += sample * dt_row + k.to(tl.int64) * dt_direction
    B += sample * B_row + k.to(tl.int64) * B_direction
    C += sample * B_row + k.to(tl.int64) * B_direction
    weights = load_weights(weight + k * E * RANK, channel, RANK)
    bias_e = tl.load(bias + k * E + channel)
    skip_e = tl.load(D + k * E + channel)
    A_m = ()
    R_m = ()
    for m in tl.static_range(M):
        at = (k * E + channel)[None, :] * N + (group * M + m)[:, None]
        there = (group * M + m < N)[:, None] & (channel >= 0)[None, :]
        A_m = A_m + (tl.load(A + at, mask=there, other=0.0)[None, :, :] * LOG2E,)
        R_m = R_m + (tl.load(R + at, mask=there, other=0.0)[None, :, :] if CORRECTION > 0 else 0.0,)
    A_down_m = A_m
    if STRETCHED:
        down = stretch_down(orders, k, stretch)
        A_down_m = ()
        for m in tl.static_range(M):
            A_down_m = A_down_m + (A_m[m] * down,)
    hold, inverse_m = hold_of_dstates(orders, k, A_m, hold_H, hold_W, HOLD, M)
    ROW: tl.constexpr = M * G * BE
    between = (L + 2 * S) * ROW
    handed += program.to(tl.int64) * (between + 2 * S * ROW)
    inner = group[None, :, None] * BE + tl.arange(0, BE)[None, None, :]
    own = strip[:, None, None] * ROW
    is_first = (strip == 0)[:, None, None]
    is_last = (strip == S - 1)[:, None, None]
    columns_closed, rows_closed = 0, 0
    if RINGS:
        columns_closed, rows_closed = closed(orders, k, rings)
        closing += program.to(tl.int64) * (2 * L * ROW)
    own_down, own_along = 0.0, 0.0
    if OWN:
        own_down, own_along = own_of(orders, k, own_H, own_W)

    for band in range(tl.cdiv(HT, TH * S)):
        g = begin_rows(closing, inner, band, 0, HT * rows_closed, RINGS, TH, S, G, M, BE)
        has_above = (strip > 0)[:, None, None] | (band + strip * 0 > 0)[:, None, None]
        closed_until = tl.where(band > 0, 0, WT * columns_closed)
        if OWN:
            counts, more_down = counts_of_rows(band, 0, 0, own_down, columns_closed, 0, TH, S)
        rows = rows_of_band(band, corner, step_i, HT, 0, TH, S)
        delta3, x3 = prepare(
            0, rows, has_begun(0, band, 0, TH, S, 1), x, dt, bias_e, weights, channel, step_j, WT, E, dt_row,
            RANK, TH, S, BE, 1, RINGS,
        )  # fmt: skip
        for t in range(WT + S - 1):
            j = column_of(t, WT, S, 1) * step_j
            delta = rows_of(tl.broadcast_to(delta3[:, :, None, :], [TH, S, G, BE]))
            u3 = x3 if HOLD > 0 else delta3 * x3
            u = rows_of(tl.broadcast_to(u3[:, :, None, :], [TH, S, G, BE]))
            if OWN:
                of_column = count_of_column(t, own_along, rows_closed, S, 1)
            at_BC = (rows * B_row + (j * B_row)[None, :])[:, :, None, None] + dstate[None, None, :, :]
            B_m = columns_of(load_dstates(B + at_BC, dstate, N, G * M))
            C_m = columns_of(load_dstates(C + at_BC, dstate, N, G * M))
            # The strip above left its last row one step ago, in one of two slots in turns: one barrier a step will do.
            # The first strip takes the row that the last strip of the band before left at this column.
            above = (
                handed + tl.where(is_first, (t + S - 1) * ROW, between + (t + 1) % 2 * (S * ROW) + own - ROW) + inner
            )
            below = handed + tl.where(is_last, t * ROW, between + t % 2 * (S * ROW) + own) + inner
            y = ()
            for _i in tl.static_range(TH):
                y = y + (tl.zeros([S, G, BE], tl.float32),)
            before = g
            g = ()
            for m in tl.static_range(M):
                B_i = rows_of(tl.broadcast_to(B_m[m][:, :, :, None], [TH, S, G, BE]))
                C_i = rows_of(tl.broadcast_to(C_m[m][:, :, :, None], [TH, S, G, BE]))
                h = tl.load(above + m * (G * BE), mask=has_above, other=0.0)
                if RINGS:
                    h += begin_column(closing, inner, t, closed_until, L, m, S, G, M, BE)
                y_before = y
                y = ()
                for i in tl.static_range(TH):
                    a = tl.exp2(delta[i] * A_m[m])
                    a_down = tl.exp2(delta[i] * A_down_m[m]) if STRETCHED else a
                    bx = B_i[i] * u[i]
                    if HOLD > 0:
                        bx *= held(delta[i], A_m[m], a, hold, inverse_m[m], HOLD)
                    if OWN:
                        counted = bx * counts[i]
                        g_i = a * before[m * TH + i] + counted * of_column
                        o = g_i + own_along * counted
                        h = a_down * h + o
                        read = h + more_down[i] * o
                    else:
                        g_i = a * before[m * TH + i] + bx  # lines 17 to 20: along the row
                        h = a_down * h + g_i  # lines 21 to 24: along the column
                        read = h
                    g = g + (g_i,)
                    y_i = y_before[i]
                    if CORRECTION == 2:
                        y_i += C_i[i] * (read - R_m[m] * bx)
                    else:
                        y_i += C_i[i] * read
                        if CORRECTION == 1:
                            y_i -= R_m[m] * bx
                    y = y + (y_i,)
                tl.store(below + m * (G * BE), h)
            y3 = tl.sum(stacked(y), axis=2) + skip_e[None, None, :] * x3
            i = (band * S + strip)[None, :] * TH + tl.arange(0, TH)[:, None]
            inside = (i < HT) & ((t - strip >= 0) & (t - strip < WT))[None, :]
            at_y = (rows * E + (j * E)[None, :])[:, :, None] + lane[None, None, :]
            tl.store(y_part + at_y, y3, mask=inside[:, :, None] & (lane < E)[None, None, :])
            tl.debug_barrier()
            # The next step's, as values that the loop carries: the compiler cannot compute them again in every thread.
            delta3, x3 = prepare(
                t + 1, rows, has_begun(t + 1, band, 0, TH, S, 1), x, dt, bias_e, weights, channel, step_j, WT, E,
                dt_row, RANK, TH, S, BE, 1, RINGS,
            )  # fmt: skip
