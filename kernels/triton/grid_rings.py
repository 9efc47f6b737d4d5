"""What the rows and columns of a 2d scan begin with where an axis is a ring: the state with which they end.

From a zero start a row ends at e, and the product of its Abar is p = exp(A sum dt): it begins with e / (1 - p). Columns
likewise, from rows that are closed before. The adjoint states of grid_sweep run against the scan, columns first. Each
closing is a walk over the grid, as the wavefront of grid_forward, that keeps nothing but the ends and sums of dt.

Axes: S strips, G groups of dstates, M dstates of a thread, BE channels, TH rows of a strip.
"""
# mypy: disable-error-code="no-untyped-def,assignment"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.arithmetic import LOG2E, closed, held, one_minus_exp, own_of, stretch_down, turned
from geomano_hpc.kernels.triton.wavefront import (
    begin_column,
    begin_rows,
    columns_of,
    count_of_column,
    counts_of_rows,
    has_begun,
    hold_of_dstates,
    load_dstates,
    load_weights,
    prepare,
    row_of_band,
    rows_of,
    rows_of_band,
    stacked,
)

_INTS = [
    "orders", "H", "W", "E", "batch", "blocks", "dt_row", "dt_direction", "B_row", "B_direction", "stretch", "rings",
    "own_H", "own_W", "hold_H", "hold_W",
]  # fmt: skip
_POINTERS = ["x", "dt", "A", "B", "bias", "weight", "closing", "handed"]
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def is_column(t, WT, S: tl.constexpr):
    """[S]: whether a strip is at a column of the grid in step t."""
    j = t - tl.arange(0, S)
    return (j >= 0) & (j < WT)


@triton.jit(do_not_specialize=_INTS, do_not_specialize_on_alignment=_POINTERS)
def grid_rings_kernel(
    x, dt, A, B, bias, weight, closing, handed,
    orders, H, W, E, batch, blocks, dt_row, dt_direction, B_row, B_direction,
    stretch, rings, own_H, own_W, hold_H, hold_W,
    ADJOINT: tl.constexpr, STRETCHED: tl.constexpr, OWN: tl.constexpr, HOLD: tl.constexpr,
    RANK: tl.constexpr, N: tl.constexpr,
    TH: tl.constexpr, S: tl.constexpr, G: tl.constexpr, M: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """The programs are those of grid_forward and grid_sweep. With ADJOINT x is dy and B is C.

    closing [programs, 2 max(H, W), M, G, BE]: g, or eta, with which each row begins, and then h, or nu, with which each
    column does, in the order of the scan, or against it; 0 for dstates that are not there. Of an axis that is no ring
    nothing is written.
    handed [programs, 2 max(H, W) + 2 S, M + 1, G, BE]: the last row of a band, which is in the end what the columns end
    with; what the rows end with; the strips' last rows in two slots. Below the dstates the sum of dt.
    """
    program = tl.program_id(0)
    block = program % blocks
    b = program // blocks % batch
    k = program // (blocks * batch)
    corner, step_i, step_j, HT, WT = turned(orders, k, H, W)
    L = tl.maximum(H, W)
    bands = tl.cdiv(HT, TH * S)
    lead = bands * (TH * S) - HT  # so that the last band ends where the grid does
    if ADJOINT:
        corner += (HT - 1) * step_i + (WT - 1) * step_j
        step_i = -step_i
        step_j = -step_j
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
    down = 1.0
    if STRETCHED:
        down = stretch_down(orders, k, stretch)
    A_m = ()
    A_down_m = ()
    for m in tl.static_range(M):
        of_A = (k * E + channel)[None, :] * N + (group * M + m)[:, None]
        is_dstate = (group * M + m < N)[:, None] & (channel >= 0)[None, :]
        A_m = A_m + (tl.load(A + of_A, mask=is_dstate, other=0.0)[None, :, :] * LOG2E,)
        A_down_m = A_down_m + (A_m[m] * down if STRETCHED else A_m[m],)
    hold, inverse_m = hold_of_dstates(orders, k, A_m, hold_H, hold_W, HOLD, M)
    ROW: tl.constexpr = M * G * BE
    SUM: tl.constexpr = G * BE
    DEEP: tl.constexpr = ROW + SUM
    between = 2 * L * DEEP
    closing += program.to(tl.int64) * (2 * L * ROW)
    handed += program.to(tl.int64) * (between + 2 * S * DEEP)
    inner = group[None, :, None] * BE + tl.arange(0, BE)[None, None, :]
    own = strip[:, None, None] * DEEP
    is_first = (strip == 0)[:, None, None]
    is_last = (strip == S - 1)[:, None, None]
    columns_closed, rows_closed = closed(orders, k, rings)
    own_down, own_along = 0.0, 0.0
    if OWN:
        own_down, own_along = own_of(orders, k, own_H, own_W)

    for walk in range(rows_closed + columns_closed):
        # A first walk closes the rows, or with ADJOINT the columns; a second one begins with what it has closed.
        of_columns = tl.where(walk < rows_closed, 0, 1)
        if ADJOINT:
            of_columns = tl.where(walk < columns_closed, 1, 0)
        for band in range(bands):
            flow = begin_rows(closing, inner, band, lead, HT * walk, not ADJOINT, TH, S, G, M, BE)
            rows = rows_of_band(band, corner, step_i, HT, lead, TH, S)
            has_above = (strip > 0) | (band + strip * 0 > 0)
            closed_until = tl.where(band > 0, 0, WT * walk)
            if OWN:
                counts, more_down = counts_of_rows(
                    band, lead, HT - 1 if ADJOINT else 0, own_down, columns_closed, -1, TH, S
                )
            along = tl.zeros([TH, S, BE], tl.float32)
            begun = has_begun(0, band, lead, TH, S, 1) & is_column(0, WT, S)[None, :]
            delta3, x3 = prepare(
                0, rows, begun, x, dt, bias_e, weights, channel, step_j, WT, E, dt_row, RANK, TH, S, BE, 1, True
            )
            for t in range(WT + S - 1):
                inside = is_column(t, WT, S)
                j = tl.minimum(tl.maximum(t - strip, 0), WT - 1)
                delta = rows_of(tl.broadcast_to(delta3[:, :, None, :], [TH, S, G, BE]))
                along += delta3
                u3 = x3 if ADJOINT or HOLD > 0 else delta3 * x3
                u = rows_of(tl.broadcast_to(u3[:, :, None, :], [TH, S, G, BE]))
                if OWN:
                    of_column = count_of_column(t, own_along, rows_closed, S, 1)
                at_B = (rows * B_row + (j * step_j * B_row)[None, :])[:, :, None, None] + dstate[None, None, :, :]
                B_m = columns_of(load_dstates(B + at_B, dstate, N, G * M))
                left = between + (t + 1) % 2 * (S * DEEP) + own - DEEP
                above = handed + tl.where(is_first, t * DEEP, left) + inner
                right = between + t % 2 * (S * DEEP) + own
                below = handed + tl.where(is_last, (t - (S - 1)) * DEEP, right) + inner
                is_kept = tl.broadcast_to(inside[:, None, None], [S, G, BE])
                is_entered = tl.broadcast_to((inside & has_above)[:, None, None], [S, G, BE])
                across = tl.load(above + ROW, mask=is_entered, other=0.0)
                for i in tl.static_range(TH):
                    across += delta[i]
                tl.store(below + ROW, across, mask=is_kept)
                before = flow
                flow = ()
                for m in tl.static_range(M):
                    B_i = rows_of(tl.broadcast_to(B_m[m][:, :, :, None], [TH, S, G, BE]))
                    h = tl.load(above + m * SUM, mask=is_entered, other=0.0)
                    if ADJOINT:
                        h += begin_column(closing, inner, t, closed_until, L, m, S, G, M, BE)
                    for i in tl.static_range(TH):
                        a = tl.exp2(delta[i] * A_m[m])
                        a_down = tl.exp2(delta[i] * A_down_m[m]) if STRETCHED else a
                        bx = B_i[i] * u[i]  # Bbar x, or C dy
                        if ADJOINT:
                            lam = bx + h
                            h = a_down * lam
                            o = lam + more_down[i] * bx if OWN else lam
                            flow = flow + (a * (before[m * TH + i] + o),)
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
                    tl.store(below + m * SUM, h, mask=is_kept)
                tl.debug_barrier()
                begun = has_begun(t + 1, band, lead, TH, S, 1) & is_column(t + 1, WT, S)[None, :]
                delta3, x3 = prepare(
                    t + 1, rows, begun, x, dt, bias_e, weights, channel, step_j, WT, E, dt_row,
                    RANK, TH, S, BE, 1, True,
                )  # fmt: skip
            if of_columns == 0:
                row = row_of_band(band, lead, TH, S)
                is_row = tl.broadcast_to(row >= 0, [TH, S, G, BE])
                at = handed + (L + row) * DEEP + inner[None, :, :, :]
                for m in tl.static_range(M):
                    tl.store(at + m * SUM, stacked(flow[m * TH : (m + 1) * TH]), mask=is_row)
                tl.store(at + ROW, tl.broadcast_to(along[:, :, None, :], [TH, S, G, BE]), mask=is_row)
                tl.debug_barrier()
        # The ends of all rows, or of all columns: each strip of threads takes one.
        ends = handed + tl.where(of_columns > 0, 0, L * DEEP)
        begins = closing + tl.where(of_columns > 0, L * ROW, 0)
        exponent = -LN2 * tl.where(of_columns > 0, down, 1.0)
        count = tl.where(of_columns > 0, WT, HT)
        for some in range(0, count, S):
            n = (some + strip)[:, None, None]
            is_there = tl.broadcast_to(n < count, [S, G, BE])
            passed = exponent * tl.load(ends + n * DEEP + ROW + inner, mask=is_there, other=1.0)
            for m in tl.static_range(M):
                h = tl.load(ends + n * DEEP + m * SUM + inner, mask=is_there, other=0.0)
                lost = one_minus_exp(passed * A_m[m])
                lost = tl.where((n < count) & (group * M + m < N)[None, :, None], lost, 1.0)
                tl.store(begins + n * ROW + m * SUM + inner, h / lost, mask=is_there)
        tl.debug_barrier()
