"""What the wavefronts over a grid share: the points of a step, their time steps and inputs, and rows in registers.

A program's warps are S strips of TH rows, one below the other, S * TH rows a band. Strip s works at column t - skew * s
of the turned grid in step t.
"""
# mypy: disable-error-code="no-untyped-def,assignment"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.arithmetic import hold_of, inverse_of, softplus

UNROLLED_RANK = tl.constexpr(8)  # more would take long to compile


@triton.jit
def time_step(dt, at, bias_e, weights, channel, RANK: tl.constexpr):
    """Line 7: softplus(dt + bias) [TH, S, BE], where `at` are the rows of dt [TH, S, BE], without the channel.

    A low-rank dt is loaded with an element for every thread, all channels the same address: a smaller load would be
    repeated by every thread that needs it, together with the softplus that follows from it.
    """
    if RANK == 0:
        raw = tl.load(dt + at + channel[None, None, :]).to(tl.float32) + bias_e[None, None, :]
    else:
        raw = tl.zeros(at.shape, tl.float32) + bias_e[None, None, :]
        if RANK <= UNROLLED_RANK:
            for q in tl.static_range(RANK):
                raw += tl.load(dt + at + q).to(tl.float32) * weights[q][None, None, :]
        else:
            for q in range(RANK):
                raw += tl.load(dt + at + q).to(tl.float32) * tl.load(weights + channel * RANK + q)[None, None, :]
    return softplus(raw)


@triton.jit
def load_weights(weight, channel, RANK: tl.constexpr):
    """The weights of a low-rank dt that stay in registers; of a larger rank, where they are."""
    if RANK <= UNROLLED_RANK:
        weights = ()
        for q in tl.static_range(RANK):
            weights = weights + (tl.load(weight + channel * RANK + q),)
        return weights
    else:
        return weight


@triton.jit
def rows_of_band(band, corner, step_i, HT, lead, TH: tl.constexpr, S: tl.constexpr):
    """The points [TH, S] at which the rows of a band begin. The strips begin `lead` rows before the grid does.

    A row outside is the nearest one inside: what is computed there again is never used. So time steps need no mask, and
    the inputs only where the scan has not begun yet.
    """
    i = (band * S + tl.arange(0, S)[None, :]) * TH + tl.arange(0, TH)[:, None] - lead
    return corner + tl.minimum(tl.maximum(i, 0), HT - 1) * step_i


@triton.jit
def column_of(t, WT, S: tl.constexpr, SKEW: tl.constexpr):
    """The column [S] of each strip in step t, the nearest one inside."""
    return tl.minimum(tl.maximum(t - SKEW * tl.arange(0, S), 0), WT - 1)


@triton.jit
def has_begun(t, band, lead, TH: tl.constexpr, S: tl.constexpr, SKEW: tl.constexpr):
    """[TH, S]: neither in front of the first column nor above the first row."""
    started = t >= SKEW * tl.arange(0, S)[None, :]
    return started & ((band * S + tl.arange(0, S)[None, :]) * TH + tl.arange(0, TH)[:, None] >= lead)


@triton.jit
def prepare(
    t, rows, begun, x, dt, bias_e, weights, channel, step_j, WT, E, dt_row,
    RANK: tl.constexpr, TH: tl.constexpr, S: tl.constexpr, BE: tl.constexpr, SKEW: tl.constexpr,
    RINGS: tl.constexpr = False,
):  # fmt: skip
    """delta and x [TH, S, BE] of step t, x 0 where the scan has not begun. With RINGS delta, too, so that what a row or
    column begins with waits there as it is."""
    j = column_of(t, WT, S, SKEW) * step_j
    at = tl.broadcast_to((rows * dt_row + (j * dt_row)[None, :])[:, :, None], [TH, S, BE])
    delta = time_step(dt, at, bias_e, weights, channel, RANK)
    if RINGS:
        delta = tl.where(begun[:, :, None], delta, 0.0)
    at_x = (rows * E + (j * E)[None, :])[:, :, None] + channel[None, None, :]
    return delta, tl.load(x + at_x, mask=tl.broadcast_to(begun[:, :, None], at_x.shape), other=0.0).to(tl.float32)


@triton.jit
def begin_rows(
    closing, inner, band, lead, until,
    RINGS: tl.constexpr, TH: tl.constexpr, S: tl.constexpr, G: tl.constexpr, M: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """M * TH tensors [S, G, BE], the rows of dstate after dstate: what the rows of a band begin with, which is 0 but on
    RINGS for the rows `until`."""
    states = ()
    if RINGS:
        row = row_of_band(band, lead, TH, S)
        there = tl.broadcast_to((row >= 0) & (row < until), [TH, S, G, BE])
        for m in tl.static_range(M):
            at = closing + row * (M * G * BE) + m * (G * BE) + inner[None, :, :, :]
            states = states + rows_of(tl.load(tl.broadcast_to(at, there.shape), mask=there, other=0.0))
    else:
        for _n in tl.static_range(M * TH):
            states = states + (tl.zeros([S, G, BE], tl.float32),)
    return states


@triton.jit
def row_of_band(band, lead, TH: tl.constexpr, S: tl.constexpr):
    """The rows of a band [TH, S, 1, 1] in the grid, which begins after `lead` of them."""
    row = (band * S + tl.arange(0, S)[None, :]) * TH + tl.arange(0, TH)[:, None] - lead
    return row[:, :, None, None]


@triton.jit
def begin_column(
    closing, inner, t, until, L, m: tl.constexpr,
    S: tl.constexpr, G: tl.constexpr, M: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """[S, G, BE] of dstate m: what column t begins with, in the first strip and for the columns `until`; else 0."""
    strip = tl.arange(0, S)[:, None, None]
    there = tl.broadcast_to((strip == 0) & (t + strip < until), [S, G, BE])
    at = closing + (L + t) * (M * G * BE) + m * (G * BE) + inner
    return tl.load(tl.broadcast_to(at, [S, G, BE]), mask=there, other=0.0)


@triton.jit
def counts_of_rows(band, lead, first, own_down, columns_closed, ONLY: tl.constexpr, TH: tl.constexpr, S: tl.constexpr):
    """Of TH rows, each [S, 1, 1] or a scalar: how often what enters a row counts, which is once but in row `first`, and
    own_down over that (ScanSettings.own_of). Row `first` can be row ONLY of a strip, or any if that is negative.

    Where g is that of what counts so, a column is h = Abar h + o, with (T + own_down) o = h + (own_down over that) o.
    """
    counts = ()
    more = ()
    for i in tl.static_range(TH):
        if ONLY < 0 or i == ONLY:
            row = ((band * S + tl.arange(0, S)) * TH + i - lead)[:, None, None]
            count = tl.where(row == first, 1.0 + own_down * (1 - columns_closed), 1.0)
            counts = counts + (count,)
            more = more + (own_down / count,)
        else:
            counts = counts + (1.0,)
            more = more + (own_down,)
    return counts, more


@triton.jit
def count_of_column(t, own_along, rows_closed, S: tl.constexpr, SKEW: tl.constexpr):
    """[S, 1, 1]: how often what enters at the column of step t counts."""
    is_first = (t - SKEW * tl.arange(0, S) == 0)[:, None, None]
    return tl.where(is_first, 1.0 + own_along * (1 - rows_closed), 1.0)


@triton.jit
def hold_of_dstates(orders, k, A_m, hold_H, hold_W, HOLD: tl.constexpr, M: tl.constexpr):
    """ScanSettings.hold_of of direction k, and 1 / (hold A) of M dstates."""
    hold = 1.0
    inverse_m = ()
    if HOLD == 2:
        hold = hold_of(orders, k, hold_H, hold_W)
    if HOLD > 0:
        for m in tl.static_range(M):
            inverse_m = inverse_m + (inverse_of(A_m[m], hold),)
    return hold, inverse_m


@triton.jit
def load_dstates(pointers, dstate, N: tl.constexpr, PADDED: tl.constexpr):
    """[TH, S, G, M] of B or C; 0 for dstates that are not there."""
    if PADDED == N:
        return tl.load(pointers).to(tl.float32)
    else:
        there = tl.broadcast_to((dstate < N)[None, None, :, :], pointers.shape)
        return tl.load(pointers, mask=there, other=0.0).to(tl.float32)


@triton.jit
def rows_of(z):
    """[T, S, G, BE] -> T tensors [S, G, BE] in order; T is a power of two to 16, in registers: this costs nothing."""
    T: tl.constexpr = z.shape[0]
    S: tl.constexpr = z.shape[1]
    G: tl.constexpr = z.shape[2]
    BE: tl.constexpr = z.shape[3]
    LEVELS: tl.constexpr = (T > 1) + (T > 2) + (T > 4) + (T > 8)
    parts = (z,)
    for level in tl.static_range(LEVELS):
        halves = ()
        for n in tl.static_range(1 << level):
            two = tl.reshape(parts[n], [2, T >> (level + 1), S, G, BE])
            upper, lower = tl.split(tl.permute(two, [1, 2, 3, 4, 0]))
            halves = halves + (upper, lower)
        parts = halves
    rows = ()
    for n in tl.static_range(T):
        rows = rows + (tl.reshape(parts[n], [S, G, BE]),)
    return rows


@triton.jit
def columns_of(z):
    """[T, S, G, M] -> M tensors [T, S, G] in order; M is a power of two to 8."""
    T: tl.constexpr = z.shape[0]
    S: tl.constexpr = z.shape[1]
    G: tl.constexpr = z.shape[2]
    M: tl.constexpr = z.shape[3]
    LEVELS: tl.constexpr = (M > 1) + (M > 2) + (M > 4)
    parts = (z,)
    for level in tl.static_range(LEVELS):
        halves = ()
        for n in tl.static_range(1 << level):
            two = tl.reshape(parts[n], [T, S, G, 2, M >> (level + 1)])
            first, second = tl.split(tl.permute(two, [0, 1, 2, 4, 3]))
            halves = halves + (first, second)
        parts = halves
    columns = ()
    for n in tl.static_range(M):
        columns = columns + (tl.reshape(parts[n], [T, S, G]),)
    return columns


@triton.jit
def stacked(rows):
    """T tensors [S, G, BE] -> [T, S, G, BE] in order; T is a power of two to 16."""
    S: tl.constexpr = rows[0].shape[0]
    G: tl.constexpr = rows[0].shape[1]
    BE: tl.constexpr = rows[0].shape[2]
    T: tl.constexpr = len(rows)
    LEVELS: tl.constexpr = (T > 1) + (T > 2) + (T > 4) + (T > 8)
    parts = rows
    for level in tl.static_range(LEVELS):
        pairs = ()
        for n in tl.static_range(T >> (level + 1)):
            pairs = pairs + (tl.join(parts[n], parts[n + (T >> (level + 1))]),)
        parts = pairs
    return tl.permute(tl.reshape(parts[0], [S, G, BE, T]), [3, 0, 1, 2])
