"""What the Triton kernels of the scan share: a tile's positions and time steps, and pieces of arithmetic.

A tile is a matrix [P, BE] of P positions: P consecutive steps of the sequence (1d), or TH x TW positions of the grid,
row by row (2d). The scan order is in the strides: pointers point at the corner where the traversal starts and steps may
be negative, so that i and j always count rows and columns of the turned grid.

Positions and channels outside the grid are neutral: a time step of 0 gives Abar = 1 and an input of 0.
"""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def compose(a_first, b_first, a_second, b_second):
    """Two steps h -> a h + b, one after the other."""
    return a_first * a_second, a_second * b_first + b_second


@triton.jit
def log1p_of_unit(w):
    """log(1 + w) for 0 <= w <= 1, as 2 atanh(w / (2 + w)): full precision also where 1 + w rounds to 1."""
    z = w / (2.0 + w)
    z2 = z * z
    series = 1.0 / 15.0
    series = series * z2 + 1.0 / 13.0
    series = series * z2 + 1.0 / 11.0
    series = series * z2 + 1.0 / 9.0
    series = series * z2 + 1.0 / 7.0
    series = series * z2 + 1.0 / 5.0
    series = series * z2 + 1.0 / 3.0
    series = series * z2 + 1.0
    return 2.0 * z * series


@triton.jit
def softplus(raw):
    """log(1 + exp(raw)) without overflow; NaN stays NaN."""
    positive_part = tl.where(raw > 0.0, raw, 0.0)
    return positive_part + log1p_of_unit(tl.exp2(-tl.abs(raw) * LOG2E))


@triton.jit
def pick(table, row, wanted):
    """One row [BE] of a table [rows, BE] that stays on chip: parameters are read from memory once, not once a tile."""
    return tl.sum(tl.where(row[:, None] == wanted, table, 0.0), axis=0)


@triton.jit
def pick_column(table, column, wanted):
    """One column [P] of a table [P, columns] that stays on chip."""
    return tl.sum(tl.where(column[None, :] == wanted, table, 0.0), axis=1)


@triton.jit
def along_lanes(tile):
    """The same [P, BE], held so that a scan over the positions stays inside a warp.

    A gather along an axis makes the compiler lay that axis along the lanes of a warp. Without it, it keeps the layout
    of the loads, with positions spread over warps, and every scan, sum and reversal goes through shared memory.
    """
    P: tl.constexpr = tile.shape[0]
    return tl.gather(tile, tl.broadcast_to(tl.arange(0, P)[:, None], tile.shape), 0)


@triton.jit
def only_if(mask, number):
    """The mask if a scalar is positive, else nothing.

    The comparison is between blocks, since the interpreter of Triton 3.9 refuses masks made from a scalar one.
    """
    return mask & (tl.zeros(mask.shape, tl.int32) + number > 0)


@triton.jit
def load_parameters(pointer, channel, is_channel, row, rows):
    """[rows, BE] of a parameter that is stored [E, rows], as float32; 0 outside."""
    inside = (row[:, None] < rows) & is_channel[None, :]
    return tl.load(pointer + channel[None, :] * rows + row[:, None], mask=inside, other=0.0)


@triton.jit
def tile_positions(
    tile_i, tile_j, lead_i, lead_j, HT, WT, TWO_D: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr
):  # fmt: skip
    """A tile's first row and column in the turned grid, and row, column (from there) and validity [P] of its positions.

    The tiles begin lead_i rows and lead_j columns (1d: lead_j steps) before the grid does.
    The first two are 64-bit and scalar, the others 32-bit: an address is a scalar base and a short offset, which takes
    fewer registers than a 64-bit pointer for every position.
    """
    p = tl.arange(0, TH * TW)
    if TWO_D:
        first_row = tile_i * TH - lead_i
        first_column = tile_j * TW - lead_j
        i = p // TW
        j = p % TW
        row, column = first_row + i, first_column + j
        inside = (row >= 0) & (row < HT) & (column >= 0) & (column < WT)
    else:
        t = tile_i * (TH * TW) - lead_j + p
        start = tl.maximum(tile_i * (TH * TW) - lead_j, 0)
        first_row = start // WT
        first_column = start % WT
        i = (first_column + t - start) // WT
        j = (first_column + t - start) % WT - first_column
        inside = (t >= 0) & (t < HT * WT)
    return first_row.to(tl.int64), first_column.to(tl.int64), i, j, inside


@triton.jit
def load_time_step(
    dt, offset, inside, channel, is_channel, bias, weight, RANK: tl.constexpr, RANK_BLOCK: tl.constexpr
):  # fmt: skip
    """Line 7: delta = softplus(dt + bias) [P, BE], 0 outside, with the tile of low-rank factors [P, r] if there are.

    The product of the factors exists only here: Linear(dt_low) is never in memory.
    """
    if RANK > 0:
        rank = tl.arange(0, RANK_BLOCK)
        low = tl.load(dt + offset[:, None] + rank[None, :], mask=inside[:, None] & (rank[None, :] < RANK), other=0.0)
        low = low.to(tl.float32)
        raw = tl.dot(low, weight, input_precision="ieee")
    else:
        low = 0.0
        raw = tl.load(dt + offset[:, None] + channel[None, :], mask=inside[:, None] & is_channel[None, :], other=0.0)
        raw = raw.to(tl.float32)
    delta = softplus(raw + bias[None, :])
    return tl.where(inside[:, None] & is_channel[None, :], delta, 0.0), low


@triton.jit
def compose_with_past(a_first, b_first, past_first, a_second, b_second, past_second):
    """`compose` that also carries past[t] = Abar[t] h[t-1], so that no shifted copy of h is needed."""
    from_first = a_second * b_first
    return a_first * a_second, from_first + b_second, from_first + past_second


@triton.jit
def add_to_row(table, row, wanted, value):
    """A table [rows, BE] on chip with `value` [BE] added to one row."""
    return tl.where(row[:, None] == wanted, table + value[None, :], table)


@triton.jit
def add_to_column(table, column, wanted, value):
    """A table [P, columns] on chip with `value` [P] added to one column."""
    return tl.where(column[None, :] == wanted, table + value[:, None], table)


@triton.jit
def softplus_slope(delta):
    """The derivative of softplus where it took the value delta: 1 - exp(-delta), by its series where that cancels."""
    series = 1.0 / 5040.0
    series = -series * delta + 1.0 / 720.0
    series = -series * delta + 1.0 / 120.0
    series = -series * delta + 1.0 / 24.0
    series = -series * delta + 1.0 / 6.0
    series = -series * delta + 0.5
    series = -series * delta + 1.0
    return tl.where(delta < 0.25, series * delta, 1.0 - tl.exp2(-delta * LOG2E))


@triton.jit
def backwards(tile):
    """[P, BE] read from its end: element p is tile[P - 1 - p].

    `associative_scan(reverse=True)` is wrong in several Triton releases; a scan of this is not.
    """
    P: tl.constexpr = tile.shape[0]
    source = P - 1 - tl.arange(0, P)
    return tl.gather(tile, tl.broadcast_to(source[:, None], tile.shape), 0)


@triton.jit
def neighbour_backwards(a, step: tl.constexpr, is_there):
    """Abar of the position that an adjoint state comes from: element p is a[P - 1 - p + step].

    1 where that is over the tile's edge (not `is_there` [P]): the carry has been multiplied by Abar already.
    """
    P: tl.constexpr = a.shape[0]
    source = tl.where(is_there, P - 1 - tl.arange(0, P) + step, 0)
    return tl.where(is_there[:, None], tl.gather(a, tl.broadcast_to(source[:, None], a.shape), 0), 1.0)
