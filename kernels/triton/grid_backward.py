"""The 2d backward, main pass: every gradient of a scan from the states and adjoint states on the edges of its tiles.

One warp takes one sample, direction, block of BE channels (one a lane), strip of STRIP rows of the turned grid and
segment of its columns. It walks the segment from right to left in tiles of STRIP x 4 positions, made of parts of 4 x 4
positions that lie on top of each other; the sixteen positions of a part are tuples of [BE] tensors, so that nothing is
scanned over lanes. With Abar = exp(delta A), and lam, mu the adjoint states of h and g (Eq. 2D GeoMamba-SSM):

    g[i,j] = Abar g[i,j-1] + B delta x                 lam[i,j] = C dy + Abar[i+1,j] lam[i+1,j]
    h[i,j] = Abar h[i-1,j] + g[i,j]                    mu[i,j] = lam[i,j] + Abar[i,j+1] mu[i,j+1]

Where spacings differ by axis (`stretch`), Abar of h and lam is Abar_down, with an exponent of its own. Where points
count more for themselves (OWN), g and h are those of wavefront.counts_of_rows, and lam, mu their adjoint states.

Two sweeps have left what enters a tile. What stays inside one program goes through its scratch: see `scratch_size`.

Buffers between the sweeps and this pass, float32; lane is the channel within its block:
    hor      [K, batch, blocks, TI, TJ, N, STRIP, BE]        g before column 4 tj, row ti STRIP + its own  (tj > 0)
    ver      [K, batch, blocks, TI, TJ, N, 4, BE]            h above row ti STRIP, column 4 tj + its own  (ti > 0)
    back_ver [K, batch, blocks, TI, TJ, N, 4, BE]            Abar lam below the strip, column as ver   (not the last)
    back_hor [K, batch, blocks, TI, segments, N, STRIP, BE]  Abar mu right of the segment, row as hor  (not the last)
with TI and TJ the strips and the tiles of a strip of the direction's own grid; both orientations have room for as many
tiles as the one with more (back_hor: TI = cdiv(max(H, W), STRIP)). Rows, columns and channels outside need not be
written. On rings what is in brackets is there as well: the ends meet. This pass may overwrite them.
"""
# mypy: disable-error-code="no-untyped-def,assignment"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.
# Triton adds tuples, and does not unpack them; `and` with a constexpr is no choice at compile time.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.arithmetic import (
    LOG2E,
    closed,
    held,
    held_slopes,
    hold_of,
    inverse_of,
    own_of,
    softplus,
    softplus_slope,
    stretch_down,
    turned,
)
from geomano_hpc.kernels.triton.registers import (
    load_field,
    load_fields,
    rows4,
    stack,
    store_field,
    store_fields,
    sum_over_channels,
    unstack,
    unstack4,
)

SIDE = tl.constexpr(4)  # rows and columns of a part: sixteen positions, four of which fill a 16-byte load
PART = tl.constexpr(16)
LN2 = tl.constexpr(0.6931471805599453)


def scratch_size(N: int, rank: int, strip: int, channels: int) -> int:
    """Floats that one program keeps for itself. Fields of four floats a lane are one load or store each.

    records N x parts x [eta: a field | A log2(e), dA, R, dR: a field | h, later Abar lam, below the part: 4 rows]
    delta, x, dy: 4 fields each for every part; a field of zeros; dt, B, C of every part: (rank + 2 N) x 16
    """
    parts = strip // 4
    return channels * (N * 12 * parts + parts * 48 + 4) + parts * (rank + 2 * N) * 16


@triton.jit
def part_points(corner, step_i, step_j, i0, j0, rows, columns, row):
    """Of the sixteen positions of a part, [16, 1]: where its point is in a sample with `row` elements a point, and
    whether it is inside. Rows and columns apart, so that the multiplications are few."""
    q = tl.arange(0, 16)[:, None]
    at = (corner + i0 * step_i + j0 * step_j) * row + q // 4 * (step_i * row) + q % 4 * (step_j * row)
    return at, (i0 + q // 4 < rows) & (j0 + q % 4 < columns)


@triton.jit
def copy_rows(source, at_point, count, target, BE: tl.constexpr):
    """count values of each of the sixteen points to target [count, 16]; one element a lane. Loads without a mask, since
    with one each would wait in a branch of its own."""
    v = tl.arange(0, BE)
    for first in range(0, count, BE // PART):
        row = first + v // PART
        values = tl.load(source + at_point + tl.minimum(row, count - 1)).to(tl.float32)
        tl.store(target + first * PART + v, values, mask=row < count)


@triton.jit
def states(a, a_down, Bx, g_left, h_above, own_along, of_row, of_column, OWN: tl.constexpr):
    """g before each of the sixteen positions, and h above and at them: h[q] is above position q, h[q + 4] at it. With
    OWN g is that of what enters its row, and h without what the positions count more for themselves: `own_of_part`."""
    past_g = ()
    h = h_above
    g = g_left[0]
    for q in tl.static_range(16):
        if q % 4 == 0:
            g = g_left[q // 4]
        past_g = past_g + (g,)
        if OWN:
            Bx_q = Bx[q] * of_row if q < 4 else Bx[q]
            g = a[q] * g + (Bx_q * of_column if q % 4 == 0 else Bx_q)
            h = h + (a_down[q] * h[q] + (g + own_along * Bx_q),)
        else:
            g = a[q] * g + Bx[q]
            h = h + (a_down[q] * h[q] + g,)
    return past_g, h


@triton.jit
def own_of_part(orders, k, own_H, own_W, i0, j0, columns_closed, rows_closed, OWN: tl.constexpr):
    """Scalars of a part at row i0 and column j0 (wavefront.counts_of_rows): own_down, own_along, how often its first
    row and its first column count, and own_down over the former."""
    if OWN:
        own_down, own_along = own_of(orders, k, own_H, own_W)
        of_row = tl.where(i0 == 0, 1.0 + own_down * (1 - columns_closed), 1.0)
        of_column = tl.where(j0 == 0, 1.0 + own_along * (1 - rows_closed), 1.0)
        return own_down, own_along, of_row, of_column, own_down / of_row
    else:
        return 0.0, 0.0, 1.0, 1.0, 0.0


@triton.jit
def tiles_of(H, W, columns, STRIP: tl.constexpr):
    """Tiles of a grid, enough for both orientations, and those of a strip of this one."""
    upright = ((H + STRIP - 1) // STRIP) * ((W + SIDE - 1) // SIDE)
    turned_over = ((W + STRIP - 1) // STRIP) * ((H + SIDE - 1) // SIDE)
    return tl.maximum(upright, turned_over), (columns + SIDE - 1) // SIDE


@triton.jit
def kb_block(kb, block):
    """The number of a direction, sample and block of channels."""
    return kb.to(tl.int64) * tl.num_programs(1) + block


@triton.jit
def tile_number(kb, block, tiles, ti, across, tj):
    return kb_block(kb, block) * tiles + (ti * across + tj)


@triton.jit
def above_part(
    part, ti, ver_tile, home, columns_closed,
    BETWEEN: tl.constexpr, OF_PART: tl.constexpr, ZEROS: tl.constexpr, RECORD: tl.constexpr, FIELD: tl.constexpr,
):  # fmt: skip
    """Where h above a part is, and how far the next dstate."""
    inner = part > 0
    enters = ti + columns_closed > 0
    pointer = tl.where(inner, home + BETWEEN + (part - 1) * OF_PART, tl.where(enters, ver_tile, home + ZEROS))
    return pointer, tl.where(inner, RECORD, tl.where(enters, FIELD, 0))


@triton.jit(
    do_not_specialize=[
        "orders", "directions", "batch", "H", "W", "E", "rank", "dt_row", "dt_direction", "B_row", "B_direction",
        "segments", "segment_tiles", "stretch", "rings", "own_H", "own_W", "hold_H", "hold_W",
    ],
    do_not_specialize_on_alignment=[
        "x", "dt", "A", "B", "C", "D", "R", "bias", "weight", "dy", "hor", "ver", "back_ver", "back_hor", "scratch",
        "dx_part", "ddt", "over_channels", "of_parameters",
    ],
)  # fmt: skip
def grid_backward_kernel(
    x, dt, A, B, C, D, R, bias, weight, dy, hor, ver, back_ver, back_hor, scratch,
    dx_part, ddt, over_channels, of_parameters,
    orders, directions, batch, H, W, E, rank, dt_row, dt_direction, B_row, B_direction,
    segments, segment_tiles, stretch, rings, own_H, own_W, hold_H, hold_W,
    LOW_RANK: tl.constexpr, N: tl.constexpr, CORRECTION: tl.constexpr, NEEDS_R: tl.constexpr,
    STRIP: tl.constexpr, BE: tl.constexpr, STRETCHED: tl.constexpr, RINGS: tl.constexpr,
    OWN: tl.constexpr, HOLD: tl.constexpr,
):  # fmt: skip
    """Grid (TI * segments, blocks, K * batch), segments innermost; a segment has segment_tiles tiles.

    scratch [programs, scratch_size]; dx_part [K, batch, points, E]; ddt [batch, points, K, E] of a full dt;
    over_channels [K, batch, blocks, TI, TJ, STRIP / 4, 2 N + rank, 16], the sixteen positions of a part row by row;
    of_parameters [K, batch * TI * segments, 2 N + 2 + rank, E]. CORRECTION 0 none, 1 equation, 2 state.
    """
    PARTS: tl.constexpr = STRIP // SIDE
    FIELD: tl.constexpr = BE * 4
    OF_PART: tl.constexpr = 3 * FIELD
    RECORD: tl.constexpr = PARTS * OF_PART
    BETWEEN: tl.constexpr = 2 * FIELD
    KEPT: tl.constexpr = N * RECORD
    ZEROS: tl.constexpr = KEPT + PARTS * 12 * FIELD
    UNIFORMS: tl.constexpr = ZEROS + FIELD
    LOW: tl.constexpr = UNIFORMS + PARTS * 2 * N * PART
    strip_segment = tl.program_id(0)
    block = tl.program_id(1)
    kb = tl.program_id(2)
    k = kb // batch
    ti = strip_segment // segments
    segment = strip_segment - ti * segments
    first_strips = (tl.maximum(H, W) + STRIP - 1) // STRIP
    _corner, _step_i, _step_j, all_rows, all_columns = turned(orders, k, H, W)
    lane = tl.arange(0, BE)
    quarter = tl.arange(0, 4)
    fields = quarter[:, None, None] * FIELD + (lane[:, None] * 4 + quarter[None, :])[None, :, :]
    everywhere = quarter[:, None, None] * 4 + (lane[:, None] * 0 + quarter[None, :])[None, :, :]
    size = LOW + PARTS * rank * PART
    records = scratch + (kb_block(kb, block) * tl.num_programs(0) + strip_segment) * size

    last_tile = tl.minimum((all_columns + SIDE - 1) // SIDE, (segment + 1) * segment_tiles) - 1
    parts = tl.minimum((all_rows - ti * STRIP + SIDE - 1) // SIDE, PARTS)  # with a row in the grid; may be negative
    tiles = tl.where(parts > 0, last_tile - segment * segment_tiles + 1, 0)

    down = 1.0
    if STRETCHED:
        down = stretch_down(orders, k, stretch)
    hold = 1.0
    if HOLD == 2:
        hold = hold_of(orders, k, hold_H, hold_W)
    none = tl.zeros([BE], tl.float32)
    nothing = tl.zeros([PART, BE], tl.float32)
    tl.store(rows4(records + ZEROS + lane, BE), tl.zeros([SIDE, BE], tl.float32))
    back_hor_tile = (
        back_hor + ((kb_block(kb, block) * first_strips + ti) * segments + segment) * (N * STRIP * BE) + lane
    )
    # As a bound: the interpreter of Triton 3.9 refuses masks that a scalar condition is part of.
    rows_there = tl.where((segment + 1) * segment_tiles * SIDE >= all_columns, 0, all_rows)
    columns_closed, rows_closed = 0, 0
    if RINGS:
        columns_closed, rows_closed = closed(orders, k, rings)
        rows_there = tl.where(rows_closed > 0, all_rows, rows_there)
    e_first = block * BE + lane
    record = records + lane * 4
    for s in range(N):
        at = (k * E + tl.minimum(e_first, E - 1)) * N + s
        A2_e = tl.load(A + at) * LOG2E
        R_e = none
        if CORRECTION > 0:
            R_e = tl.load(R + at)
        for piece in tl.static_range(PARTS):
            is_there = ti * STRIP + piece * SIDE + quarter < rows_there
            wanted = is_there[:, None] & (e_first < E)[None, :]
            eta = tl.load(rows4(back_hor_tile + piece * FIELD, BE), mask=wanted, other=0.0)
            store_field(record + piece * OF_PART, unstack4(eta, BE), BE)
            store_field(record + piece * OF_PART + FIELD, (A2_e, none, R_e, none), BE)
        record += RECORD
        back_hor_tile += STRIP * BE
    of_program = kb.to(tl.int64) * tl.num_programs(0) + strip_segment
    for row in range(2 * N, 2 * N + 2 + rank):
        at_row = of_parameters + (of_program * (2 * N + 2 + rank) + row) * E + e_first
        tl.store(at_row, none, mask=e_first < E)

    tl.debug_barrier()  # the zeros are read by all lanes

    for back in range(tiles):
        tj = last_tile - back
        j0 = tj * SIDE
        # now is 0: what is made from it is made here, and takes no registers in the loops below.
        now = tl.load(records + ZEROS).to(tl.int32)
        _corner, _step_i, _step_j, rows, columns = turned(orders, k + now, H, W)
        # What no sweep has written becomes 0, as a NaN there would reach the sums.
        if ((ti + now) * STRIP + STRIP > rows) | (j0 + SIDE > columns) | ((block + now) * BE + BE > E):
            area, across = tiles_of(H + now, W, columns, STRIP)
            empty = (block + now) * BE + lane >= E
            tile = tile_number(kb + now, block, area, ti, across, tj) * N
            for s in range(N):
                for piece in tl.static_range(PARTS):
                    outside = ((ti + now) * STRIP + piece * SIDE + quarter >= rows)[:, None] | empty[None, :]
                    at = hor + (tile + s) * (STRIP * BE) + piece * FIELD + lane
                    tl.store(rows4(at, BE), 0.0, mask=outside)
                outside = (j0 + quarter >= columns)[:, None] | empty[None, :]
                tl.store(rows4(ver + (tile + s) * FIELD + lane, BE), 0.0, mask=outside)
                tl.store(rows4(back_ver + (tile + s) * FIELD + lane, BE), 0.0, mask=outside)

        # dt, B, C side by side for all lanes, then delta and delta x, and the states that enter the lower parts.
        for part in range(parts):
            again = tl.load(records + ZEROS).to(tl.int32)
            H_now, W_now, E_now, rank_now = H + again, W + again, E + again, rank + again
            home = records + again
            k_now = k + again
            sample = (kb - k_now * batch).to(tl.int64) * ((H_now) * W_now)
            corner, step_i, step_j, rows, columns = turned(orders, k_now, H_now, W_now)
            e = (block + again) * BE + lane
            live = e < E_now
            e_own = k_now * E_now + tl.minimum(e, E_now - 1)  # a lane without a channel counts nowhere
            i0 = (ti + again) * STRIP + part * SIDE
            # Of a position outside the nearest inside is taken; with delta, x and dy 0 it counts nowhere.
            row_p = tl.minimum(i0 + lane % PART // SIDE, rows - 1)
            column_p = tl.minimum(j0 + lane % SIDE, columns - 1)
            point_p = corner + row_p * step_i + column_p * step_j
            uniform = home + UNIFORMS + part * (2 * N * PART)
            low_rank = home + LOW + part * ((rank_now) * PART)
            dt_sample = dt + sample * dt_row + k_now.to(tl.int64) * dt_direction
            B_sample = sample * B_row + k_now.to(tl.int64) * B_direction
            tl.debug_barrier()
            if LOW_RANK:
                copy_rows(dt_sample, point_p * dt_row, rank_now, low_rank, BE)
            copy_rows(B + B_sample, point_p * B_row, N, uniform, BE)
            copy_rows(C + B_sample, point_p * B_row, N, uniform + N * PART, BE)
            tl.debug_barrier()
            at, inside = part_points(corner, step_i, step_j, i0, j0, rows, columns, E_now)
            inside = inside & live[None, :]
            raw = tl.broadcast_to(tl.load(bias + e_own)[None, :], [PART, BE])
            if LOW_RANK:
                for low in range(rank_now):
                    w_e = tl.load(weight + e_own * rank_now + low)
                    raw += load_fields(low_rank + low * PART, everywhere, BE) * w_e[None, :]
            else:
                at_dt, _inside = part_points(corner, step_i, step_j, i0, j0, rows, columns, dt_row)
                raw += tl.load(dt_sample + (at_dt + e[None, :]), mask=inside, other=0.0).to(tl.float32)
            at = at + e[None, :]
            x_q = tl.load(x + sample * E_now + at, mask=inside, other=0.0).to(tl.float32)
            dy_q = tl.load(dy + sample * E_now + at, mask=inside, other=0.0).to(tl.float32)
            delta = tl.where(inside, softplus(raw), 0.0)
            kept = home + KEPT + part * (12 * FIELD)
            store_fields(kept, fields, delta, BE)
            store_fields(kept + 4 * FIELD, fields, x_q, BE)
            store_fields(kept + 8 * FIELD, fields, dy_q, BE)
            u = x_q if HOLD > 0 else delta * x_q
            if PARTS > 1:
                if part < parts - 1:
                    area, across = tiles_of(H_now, W_now, columns, STRIP)
                    tile = tile_number(kb + again, block, area, ti, across, tj) * N
                    is_left = tj + rows_closed > 0
                    left = tl.where(is_left, hor + tile * (STRIP * BE) + part * FIELD, home + ZEROS) + lane
                    left_step = tl.where(is_left, STRIP * BE, 0)
                    above, above_step = above_part(
                        part, ti, ver + tile * FIELD, home, columns_closed, BETWEEN, OF_PART, ZEROS, RECORD, FIELD
                    )
                    above += lane
                    record = home + lane * 4 + FIELD
                    between = home + lane + BETWEEN + part * OF_PART
                    B_s = uniform
                    _down, own_along, of_row, of_column, _first = own_of_part(
                        orders, k_now, own_H, own_W, i0, j0, columns_closed, rows_closed, OWN
                    )
                    for _s in range(N):
                        A2_e, _dA, _R, _dR = load_field(record, BE)
                        a_q = tl.exp2(delta * A2_e[None, :])
                        a = unstack(a_q, BE)
                        Bx_q = load_fields(B_s, everywhere, BE) * u
                        if HOLD > 0:
                            Bx_q *= held(delta, A2_e[None, :], a_q, hold, inverse_of(A2_e[None, :], hold), HOLD)
                        Bx = unstack(Bx_q, BE)
                        g_left = unstack4(tl.load(rows4(left, BE)), BE)
                        a_down = unstack(tl.exp2(delta * (A2_e * down)[None, :]), BE) if STRETCHED else a
                        h_above = unstack4(tl.load(rows4(above, BE)), BE)
                        _g, h = states(a, a_down, Bx, g_left, h_above, own_along, of_row, of_column, OWN)
                        tl.store(rows4(between, BE), stack(h[16:], BE))
                        record += RECORD
                        between += RECORD
                        B_s += PART
                        left += left_step
                        above += above_step

        for done in range(parts):
            part = parts - 1 - done
            again = tl.load(records + ZEROS).to(tl.int32)
            if OWN or HOLD > 0:
                part += again  # so that nothing of it is made before the loop, and spilled
            H_now, W_now, E_now, rank_now = H + again, W + again, E + again, rank + again
            home = records + again
            i0 = (ti + again) * STRIP + part * SIDE
            _corner, _step_i, _step_j, rows, columns = turned(orders, k + again, H_now, W_now)
            area, across = tiles_of(H_now, W_now, columns, STRIP)
            tile = tile_number(kb + again, block, area, ti, across, tj) * N
            is_left = tj + rows_closed > 0
            left = tl.where(is_left, hor + tile * (STRIP * BE) + part * FIELD, home + ZEROS) + lane
            left_step = tl.where(is_left, STRIP * BE, 0)
            above, above_step = above_part(
                part, ti, ver + tile * FIELD, home, columns_closed, BETWEEN, OF_PART, ZEROS, RECORD, FIELD
            )
            above += lane
            # The lowest part that is in the grid has nothing below it if its strip is the last one.
            lowest = part == PARTS - 1
            ends = i0 + SIDE >= rows
            if RINGS:
                lowest = lowest | ends
                ends = ends & (columns_closed == 0)
            under = tl.where(lowest, back_ver + tile * FIELD, home + BETWEEN + part * OF_PART)
            under = tl.where(ends, home + ZEROS, under) + lane
            under_step = tl.where(ends, 0, tl.where(lowest, FIELD, RECORD))
            kept = home + KEPT + part * (12 * FIELD)
            delta = load_fields(kept, fields, BE)
            u = load_fields(kept + 4 * FIELD, fields, BE)
            if HOLD == 0:
                u = delta * u
            dy_q = load_fields(kept + 8 * FIELD, fields, BE)
            if NEEDS_R:
                # In a loop of its own, since the one below has no register left.
                record = home + lane * 4 + part * OF_PART + FIELD
                B_s = home + UNIFORMS + part * (2 * N * PART)
                taken = u * dy_q
                for _s in range(N):
                    A2_e, dA_e, R_e, dR_e = load_field(record, BE)
                    B_q = load_fields(B_s, everywhere, BE)
                    if CORRECTION == 2:
                        B_q *= load_fields(B_s + N * PART, everywhere, BE)
                    if HOLD > 0:
                        a_q = tl.exp2(delta * A2_e[None, :])
                        B_q *= held(delta, A2_e[None, :], a_q, hold, inverse_of(A2_e[None, :], hold), HOLD)
                    store_field(record, (A2_e, dA_e, R_e, dR_e - tl.sum(B_q * taken, axis=0)), BE)
                    record += RECORD
                    B_s += PART
            delta_each = unstack(delta, BE)
            du = nothing
            dd = nothing
            record = home + lane * 4 + part * OF_PART
            B_s = home + UNIFORMS + part * (2 * N * PART)
            v = tl.arange(0, 32)
            own_down, own_along, of_row, of_column, of_first_row = own_of_part(
                orders, k + again, own_H, own_W, i0, j0, columns_closed, rows_closed, OWN
            )
            number = tile_number(kb + again, block, area, ti, across, tj) * PARTS + part
            sums = over_channels + number * ((rank_now + 2 * N) * PART) + v // PART * (N * PART) + v % PART
            for _s in range(N):
                A2_e, dA_e, R_e, dR_e = load_field(record + FIELD, BE)
                delta_s, u_s, dy_s = delta, u, dy_q
                if HOLD > 0:  # from memory: kept, they would take too many registers
                    delta_s = load_fields(kept, fields, BE)
                    u_s = load_fields(kept + 4 * FIELD, fields, BE)
                    dy_s = load_fields(kept + 8 * FIELD, fields, BE)
                B_q = load_fields(B_s, everywhere, BE)
                C_q = load_fields(B_s + N * PART, everywhere, BE)
                a_q = tl.exp2(delta_s * A2_e[None, :])
                a = unstack(a_q, BE)
                Bx_q = B_q * u_s
                if HOLD > 0:
                    inverse_e = inverse_of(A2_e[None, :], hold)
                    Bx_q *= held(delta_s, A2_e[None, :], a_q, hold, inverse_e, HOLD)
                g_left = unstack4(tl.load(rows4(left, BE)), BE)
                h_above = unstack4(tl.load(rows4(above, BE)), BE)
                a_down = unstack(tl.exp2(delta_s * (A2_e * down)[None, :]), BE) if STRETCHED else a
                Bx = unstack(Bx_q, BE)
                past_g, h = states(a, a_down, Bx, g_left, h_above, own_along, of_row, of_column, OWN)
                Cdy_q = C_q * dy_s
                lam_from = unstack(Cdy_q, BE)
                eta_in = load_field(record, BE)
                nu = unstack4(tl.load(rows4(under, BE)), BE)
                eta = eta_in[3]
                for_Bx = ()
                reads = ()
                throughs = ()
                eta_out = ()
                up = ()
                for q in tl.static_range(PART - 1, -1, -1):
                    if q % 4 == 3:
                        eta = eta_in[q // 4]
                        up = ()
                    lam = nu[q % 4] + lam_from[q]
                    if OWN:
                        more_down = of_first_row if q < 4 else own_down
                        do = lam + more_down * lam_from[q]
                        mu = do + eta
                        for_Bx_q = (mu * of_column if q % 4 == 0 else mu) + own_along * do
                        for_Bx = (for_Bx_q * of_row if q < 4 else for_Bx_q,) + for_Bx
                        past_h = a_down[q] * h[q]
                        reads = (h[q + 4] + more_down * (h[q + 4] - past_h),) + reads
                    else:
                        mu = lam + eta
                        for_Bx = (mu,) + for_Bx
                    nu_q = a_down[q] * lam
                    eta = a[q] * mu
                    if OWN:
                        through = (down * (lam * past_h) if STRETCHED else lam * past_h) + eta * past_g[q]
                    elif STRETCHED:
                        through = down * (nu_q * h[q]) + eta * past_g[q]
                    else:
                        through = nu_q * h[q] + eta * past_g[q]
                    if HOLD == 0:
                        dA_e += delta_each[q] * through
                    up = (nu_q,) + up
                    throughs = (through,) + throughs
                    if q % 4 == 0:
                        nu = up
                        eta_out = (eta,) + eta_out
                if HOLD > 0:  # once more, for the same reason
                    store_field(record, eta_out, BE)
                    delta_s = load_fields(kept, fields, BE)
                    u_s = load_fields(kept + 4 * FIELD, fields, BE)
                    dy_s = load_fields(kept + 8 * FIELD, fields, BE)
                direct = stack(for_Bx, BE)
                corrected = stack(reads if OWN else h[4:], BE)
                if CORRECTION == 1:
                    direct -= R_e[None, :] * dy_s
                if CORRECTION == 2:
                    direct -= R_e[None, :] * Cdy_q
                    corrected -= R_e[None, :] * Bx_q
                if HOLD > 0:
                    of_B = u_s * direct
                    through_q = stack(throughs, BE)
                    a_q = tl.exp2(delta_s * A2_e[None, :])
                    held_q = held(delta_s, A2_e[None, :], a_q, hold, inverse_e, HOLD)
                    by_delta, by_A = held_slopes(delta_s, A2_e[None, :], a_q, hold, inverse_e, held_q, HOLD)
                    of_held = load_fields(B_s, everywhere, BE) * of_B
                    dd += A2_e[None, :] * through_q + LOG2E * (of_held * by_delta)
                    dA_e += tl.sum(delta_s * through_q + hold * (of_held * by_A), axis=0)
                    of_B *= held_q
                    direct *= held_q
                    store_field(record + FIELD, (A2_e, dA_e, R_e, dR_e), BE)
                else:
                    dd += A2_e[None, :] * stack(throughs, BE)
                    store_field(record + FIELD, (A2_e, dA_e, R_e, dR_e), BE)
                    store_field(record, eta_out, BE)
                if PARTS > 1:
                    if part > 0:
                        tl.store(rows4(above, BE), stack(nu, BE))  # where h was: below the part above
                tl.store(sums, sum_over_channels(of_B if HOLD > 0 else u * direct, dy_s * corrected, BE))
                du += load_fields(B_s, everywhere, BE) * direct  # B again: kept, it would take too many registers
                record += RECORD
                B_s += PART
                left += left_step
                above += above_step
                under += under_step
                sums += PART

            # What was known before the loop is made again, for the same reason as above.
            later = tl.load(records + ZEROS).to(tl.int32)
            H_now, W_now, E_now, rank_now = H + later, W + later, E + later, rank + later
            home = records + later
            k_now = k + later
            corner, step_i, step_j, rows, columns = turned(orders, k_now, H_now, W_now)
            e = (block + later) * BE + lane
            live = e < E_now
            i0 = (ti + later) * STRIP + part * SIDE
            at, inside = part_points(corner, step_i, step_j, i0, j0, rows, columns, E_now)
            inside = inside & live[None, :]
            x_q = load_fields(home + KEPT + (part * 12 + 4) * FIELD, fields, BE)
            D_e = tl.load(D + k_now * E_now + e, mask=live, other=0.0)
            dx_sample = dx_part + (kb + later).to(tl.int64) * ((H_now) * W_now) * E_now
            if HOLD > 0:  # du is by x, and dd has all of delta
                delta = load_fields(home + KEPT + part * (12 * FIELD), fields, BE)
                dy_q = load_fields(home + KEPT + (part * 12 + 8) * FIELD, fields, BE)
                tl.store(dx_sample + (at + e[None, :]), du + D_e[None, :] * dy_q, mask=inside)
                draw = dd * LN2 * softplus_slope(delta)
            else:
                tl.store(dx_sample + (at + e[None, :]), du * delta + D_e[None, :] * dy_q, mask=inside)
                draw = (dd * LN2 + du * x_q) * softplus_slope(delta)
            program = (kb + later).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
            parameters = of_parameters + program * ((2 * N + 2 + rank_now) * E_now) + 2 * N * E_now + e
            tl.store(parameters, tl.load(parameters, mask=live) + tl.sum(x_q * dy_q, axis=0), mask=live)
            tl.store(parameters + E_now, tl.load(parameters + E_now, mask=live) + tl.sum(draw, axis=0), mask=live)
            if LOW_RANK:
                low_rank = home + LOW + part * ((rank_now) * PART)
                area, across = tiles_of(H_now, W_now, columns, STRIP)
                number = tile_number(kb + later, block, area, ti, across, tj) * PARTS + part
                at_z = over_channels + number * ((rank_now + 2 * N) * PART) + 2 * N * PART + v
                for low in range(0, rank_now, 2):
                    at_w = parameters + (2 + low) * E_now
                    has_second = e < tl.where(low + 1 < rank_now, E_now, 0)
                    weight_w = weight + (k_now * E_now + e) * rank_now + low
                    first_w = tl.load(weight_w, mask=live, other=0.0)
                    second_w = tl.load(weight_w + 1, mask=has_second, other=0.0)
                    first_dt = load_fields(low_rank + low * PART, everywhere, BE)
                    second_dt = load_fields(low_rank + tl.minimum(low + 1, rank_now - 1) * PART, everywhere, BE)
                    first_dw = tl.load(at_w, mask=live, other=0.0)
                    second_dw = tl.load(at_w + E_now, mask=has_second, other=0.0)
                    tl.store(at_w, first_dw + tl.sum(draw * first_dt, axis=0), mask=live)
                    tl.store(at_w + E_now, second_dw + tl.sum(draw * second_dt, axis=0), mask=has_second)
                    z = sum_over_channels(draw * first_w[None, :], draw * second_w[None, :], BE)
                    tl.store(at_z + low * PART, z, mask=low + v // PART < rank_now)
            else:
                at_dt, _inside = part_points(corner, step_i, step_j, i0, j0, rows, columns, directions * E_now)
                ddt_sample = ddt + ((kb - k_now * batch).to(tl.int64) * (H_now * W_now) * directions + k_now) * E_now
                tl.store(ddt_sample + (at_dt + e[None, :]), draw, mask=inside)

    last = tl.load(records + ZEROS).to(tl.int32)
    e_last = (block + last) * BE + lane
    record = records + lane * 4 + FIELD
    of_program = (kb + last).to(tl.int64) * tl.num_programs(0) + strip_segment
    at_row = of_parameters + of_program * ((2 * N + 2 + rank) * E) + e_last
    for _s in range(N):
        # Of a field A log2(e), dA, R, dR; every part has its own.
        dA_e = tl.load(record + 1)
        for piece in tl.static_range(1, PARTS):
            dA_e += tl.load(record + piece * OF_PART + 1)
        tl.store(at_row, dA_e, mask=e_last < E)
        if NEEDS_R:
            dR_e = tl.load(record + 3)
            for piece in tl.static_range(1, PARTS):
                dR_e += tl.load(record + piece * OF_PART + 3)
            tl.store(at_row + N * E, dR_e, mask=e_last < E)
        record += RECORD
        at_row += E
