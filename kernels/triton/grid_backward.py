"""The 2d backward, main pass: every gradient of a scan from the states and adjoint states on the edges of its tiles.

One warp takes one sample, direction, block of BE channels (one a lane), strip of STRIP rows of the turned grid and
segment of its columns. It walks the segment from right to left in tiles of STRIP x 4 positions, made of parts of 4 x 4
positions that lie on top of each other; the sixteen positions of a part are tuples of [BE] tensors, so that nothing is
scanned over lanes. With Abar = exp(delta A), and lam, mu the adjoint states of h and g (Eq. 2D GeoMamba-SSM):

    g[i,j] = Abar g[i,j-1] + B delta x                 lam[i,j] = C dy + Abar[i+1,j] lam[i+1,j]
    h[i,j] = Abar h[i-1,j] + g[i,j]                    mu[i,j] = lam[i,j] + Abar[i,j+1] mu[i,j+1]

Two sweeps have left what enters a tile. What stays inside one program goes through its scratch: see `scratch_size`.

Buffers between the sweeps and this pass, float32; lane is the channel within its block:
    hor      [K, batch, blocks, TI, TJ, N, STRIP, BE]        g before column 4 tj, row ti STRIP + its own   (tj > 0)
    ver      [K, batch, blocks, TI, TJ, N, 4, BE]            h above row ti STRIP, column 4 tj + its own    (ti > 0)
    back_ver [K, batch, blocks, TI, TJ, N, 4, BE]            Abar lam below the strip                       (not the last)
    back_hor [K, batch, blocks, TI, segments, N, STRIP, BE]  Abar mu right of the segment                   (not the last)
with TI = cdiv(max(H, W), STRIP) and TJ = cdiv(max(H, W), 4). Rows, columns and channels outside the grid need not be
written. This pass may overwrite them.
"""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.arithmetic import LOG2E, softplus, softplus_slope, turned

SIDE = tl.constexpr(4)  # rows and columns of a part: sixteen positions, four of which fill a 16-byte load
PART = tl.constexpr(16)
LN2 = tl.constexpr(0.6931471805599453)


def scratch_size(N: int, rank: int, strip: int, channels: int) -> int:
    """Floats that one program keeps for itself. Fields of four floats a lane are one load or store each.

    records N x [eta: strip / 4 fields | A log2(e), dA, R, dR: one field | h or Abar lam between parts: rows]
    delta, delta x: 4 fields each for every part; a field of zeros; dt, B, C of every part: (rank + 2 N) x 16
    """
    parts = strip // 4
    return channels * (N * 8 * parts + parts * 32 + 4) + parts * (rank + 2 * N) * 16


@triton.jit
def unstack4(z, BE: tl.constexpr):
    """[4, BE] as four tensors [BE]; the first axis is in registers, so this costs nothing."""
    low, high = tl.split(tl.permute(tl.reshape(z, [2, 2, BE]), [1, 2, 0]))
    first, second = tl.split(tl.trans(low))
    third, fourth = tl.split(tl.trans(high))
    return first, second, third, fourth


@triton.jit
def unstack(z, BE: tl.constexpr):
    """[16, BE] as sixteen tensors [BE]."""
    low, high = tl.split(tl.permute(tl.reshape(z, [2, 8, BE]), [1, 2, 0]))
    first, second = tl.split(tl.permute(tl.reshape(low, [2, 4, BE]), [1, 2, 0]))
    third, fourth = tl.split(tl.permute(tl.reshape(high, [2, 4, BE]), [1, 2, 0]))
    return unstack4(first, BE) + unstack4(second, BE) + unstack4(third, BE) + unstack4(fourth, BE)


@triton.jit
def stack(values, BE: tl.constexpr):
    """Four or sixteen tensors [BE] as one, with a new first axis."""
    COUNT: tl.constexpr = len(values)
    parts = values
    for _level in tl.static_range(4 if COUNT == 16 else 2):
        halves = ()
        for v in tl.static_range(len(parts) // 2):
            halves = halves + (tl.join(parts[v], parts[v + len(parts) // 2]),)
        parts = halves
    return tl.trans(tl.reshape(parts[0], [BE, COUNT]))


@triton.jit
def load_field(pointer, field, BE: tl.constexpr):
    """Four tensors [BE] from four neighbouring floats of every lane; field [BE, 4]."""
    return unstack4(tl.trans(tl.load(tl.multiple_of(pointer + field, [1, 16]))), BE)


@triton.jit
def store_field(pointer, field, values, BE: tl.constexpr):
    tl.store(tl.multiple_of(pointer + field, [1, 16]), tl.trans(stack(values, BE)))


@triton.jit
def load_fields(pointer, fields, BE: tl.constexpr):
    """[16, BE] from four fields; fields [4, BE, 4]."""
    z = tl.load(tl.multiple_of(pointer + fields, [1, 1, 16]))
    return tl.reshape(tl.permute(z, [0, 2, 1]), [16, BE])


@triton.jit
def store_fields(pointer, fields, z, BE: tl.constexpr):
    tl.store(tl.multiple_of(pointer + fields, [1, 1, 16]), tl.permute(tl.reshape(z, [4, 4, BE]), [0, 2, 1]))


@triton.jit
def sum_over_channels(first, second, BE: tl.constexpr):
    """The sums over channels of first and second [16, BE] as one tensor [32] along the lanes.

    Splitting the axis of channels needs it in a thread's registers: the values go to the lanes, once through shared
    memory, and the sums take no shuffle.
    """
    z = tl.reshape(tl.permute(tl.join(first, second), [2, 0, 1]), [32, BE])
    for _level in tl.static_range(5 if BE == 32 else 6):
        even, odd = tl.split(tl.reshape(z, [32, z.shape[1] // 2, 2]))
        z = tl.reshape(even + odd, [32, z.shape[1] // 2])
    return tl.reshape(z, [32])


@triton.jit
def copy_rows(source, at_point, inside, count, target, BE: tl.constexpr):
    """count values of each of the sixteen points to target [count, 16]; one element a lane."""
    v = tl.arange(0, BE)
    for first in range(0, count, BE // PART):
        row = first + v // PART
        values = tl.load(source + at_point + row, mask=inside & (row < count), other=0.0).to(tl.float32)
        tl.store(target + first * PART + v, values, mask=row < count)


@triton.jit
def states(a, Bx, g_left, h_above):
    """g before every position, and h at every position; of sixteen positions, row by row."""
    past_g = ()
    h = ()
    for r in tl.static_range(4):
        g = g_left[r]
        for c in tl.static_range(4):
            past_g = past_g + (g,)
            g = a[4 * r + c] * g + Bx[4 * r + c]
            if r == 0:
                h = h + (a[4 * r + c] * h_above[c] + g,)
            else:
                h = h + (a[4 * r + c] * h[4 * r + c - 4] + g,)
    return past_g, h


@triton.jit
def above_part(part, ti, ver_tile, between, zeros, RECORD: tl.constexpr, FIELD: tl.constexpr):
    """Where h above a part is, and how far the next dstate."""
    inner = part > 0
    pointer = tl.where(inner, between + (part - 1) * FIELD, tl.where(ti > 0, ver_tile, zeros))
    return pointer, tl.where(inner, RECORD, tl.where(ti > 0, FIELD, 0))


@triton.jit(
    do_not_specialize=[
        "orders", "directions", "batch", "H", "W", "E", "rank", "dt_row", "dt_direction", "B_row", "B_direction",
        "segments", "segment_tiles", "zero",
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
    segments, segment_tiles, zero,
    LOW_RANK: tl.constexpr, N: tl.constexpr, CORRECTION: tl.constexpr, NEEDS_R: tl.constexpr,
    STRIP: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Grid (TI * segments, blocks, K * batch); program 0 is the last segment of the last strip.

    scratch [programs, scratch_size]; dx_part [K, batch, points, E]; ddt [batch, points, K, E] of a full dt;
    over_channels [K, batch, blocks, 2 N + rank, TI * TJ * STRIP * 4], the slot of a position row by row in its tile;
    of_parameters [K, batch * TI * segments, 2 N + 2 + rank, E]. CORRECTION 0 none, 1 equation, 2 state. zero is 0.
    """
    PARTS: tl.constexpr = STRIP // SIDE
    RECORD: tl.constexpr = BE * 8 * PARTS
    PARAMETERS: tl.constexpr = BE * 4 * PARTS
    BETWEEN: tl.constexpr = BE * (4 * PARTS + 4)
    FIELD: tl.constexpr = BE * 4
    strip_segment = tl.program_id(0)
    block = tl.program_id(1)
    kb = tl.program_id(2)
    k = kb // batch
    b = kb - k * batch
    ti = strip_segment // segments
    segment = strip_segment - ti * segments
    longer = tl.maximum(H, W)
    strips = (longer + STRIP - 1) // STRIP
    across = (longer + SIDE - 1) // SIDE
    corner, step_i, step_j, rows, columns = turned(orders, k, H, W)
    points = H * W

    lane = tl.arange(0, BE)
    e = block * BE + lane
    live = e < E
    e_own = tl.minimum(e, E - 1)  # a lane without a channel counts nowhere: its delta, x and dy are 0
    quarter = tl.arange(0, 4)
    field = lane[:, None] * 4 + quarter[None, :]
    fields = quarter[:, None, None] * FIELD + field[None, :, :]
    everywhere = quarter[:, None, None] * 4 + (lane[:, None] * 0 + quarter[None, :])[None, :, :]
    rows4 = quarter[:, None] * BE + lane[None, :]
    row_q = tl.arange(0, PART) // SIDE
    column_q = tl.arange(0, PART) % SIDE

    blocks = tl.num_programs(1)
    program = (kb.to(tl.int64) * blocks + block) * (strips * segments) + strip_segment
    uniform_rows = rank + 2 * N
    size = BE * (N * 8 * PARTS + PARTS * 32 + 4) + PARTS * uniform_rows * PART
    records = scratch + program * size
    deltas = records + N * RECORD
    zeros = deltas + PARTS * 8 * FIELD
    uniforms = zeros + FIELD
    strip_of_all = (kb.to(tl.int64) * blocks + block) * strips + ti
    hor_strip = hor + strip_of_all * across * (N * STRIP * BE)
    ver_strip = ver + strip_of_all * across * (N * FIELD)
    back_ver_strip = back_ver + strip_of_all * across * (N * FIELD)
    back_hor_tile = back_hor + (strip_of_all * segments + segment) * (N * STRIP * BE)
    sample = b.to(tl.int64) * points
    x_sample = x + sample * E
    dy_sample = dy + sample * E
    dx_sample = dx_part + (kb.to(tl.int64) * points) * E
    dt_sample = dt + sample * dt_row + k * dt_direction
    B_sample = B + sample * B_row + k * B_direction
    C_sample = C + sample * B_row + k * B_direction
    slots = strips * across * (STRIP * SIDE)
    sums = over_channels + (kb.to(tl.int64) * blocks + block) * uniform_rows * slots

    last_tile = tl.minimum((columns + SIDE - 1) // SIDE, (segment + 1) * segment_tiles) - 1
    first_tile = segment * segment_tiles
    parts = tl.minimum((rows - ti * STRIP + SIDE - 1) // SIDE, PARTS)  # that have a row in the grid; may be negative
    tiles = tl.where(parts > 0, last_tile - first_tile + 1, 0)

    none = tl.zeros([BE], tl.float32)
    nothing = tl.zeros([PART, BE], tl.float32)
    tl.store(zeros + rows4, tl.zeros([SIDE, BE], tl.float32))
    right_end = (segment + 1) * segment_tiles * SIDE >= columns
    for s in range(N):
        A2_e = tl.load(A + (k * E + e_own) * N + s) * LOG2E
        R_e = none
        if CORRECTION > 0:
            R_e = tl.load(R + (k * E + e_own) * N + s)
        store_field(records + s * RECORD + PARAMETERS, field, (A2_e, none, R_e, none), BE)
        for piece in tl.static_range(PARTS):
            is_there = (ti * STRIP + piece * SIDE + quarter < rows) & (right_end == 0)
            at = (s * STRIP + piece * SIDE) * BE + rows4
            eta = tl.load(back_hor_tile + at, mask=is_there[:, None] & live[None, :], other=0.0)
            store_field(records + s * RECORD + piece * FIELD, field, unstack4(eta, BE), BE)
    bias_e = tl.load(bias + k * E + e_own)
    D_e = tl.load(D + k * E + e_own)
    dD_e = none
    dbias_e = none
    parameters = of_parameters + (kb.to(tl.int64) * (strips * segments) + strip_segment) * ((2 * N + 2 + rank) * E)
    for low in range(rank):
        tl.store(parameters + (2 * N + 2 + low) * E + e, none, mask=live)

    for back in range(tiles):
        tj = last_tile - back
        j0 = tj * SIDE
        hor_tile = hor_strip + tj * (N * STRIP * BE)
        ver_tile = ver_strip + tj * (N * FIELD)
        back_ver_tile = back_ver_strip + tj * (N * FIELD)
        # What no sweep has written becomes 0, as a NaN there would reach the sums.
        if (ti * STRIP + STRIP > rows) | (j0 + SIDE > columns) | (block * BE + BE > E):
            for s in range(N):
                for piece in tl.static_range(PARTS):
                    outside = (ti * STRIP + piece * SIDE + quarter >= rows)[:, None] | (live == 0)[None, :]
                    tl.store(hor_tile + (s * STRIP + piece * SIDE) * BE + rows4, 0.0, mask=outside)
                outside = (j0 + quarter >= columns)[:, None] | (live == 0)[None, :]
                tl.store(ver_tile + s * FIELD + rows4, 0.0, mask=outside)
                tl.store(back_ver_tile + s * FIELD + rows4, 0.0, mask=outside)

        # dt, B, C side by side for all lanes, then delta and delta x, and the states that enter the lower parts.
        for part in range(parts):
            i0 = ti * STRIP + part * SIDE
            row_p = i0 + lane % PART // SIDE
            column_p = j0 + lane % SIDE
            point_p = corner + row_p * step_i + column_p * step_j
            inside_p = (row_p < rows) & (column_p < columns)
            uniform = uniforms + part * (uniform_rows * PART)
            tl.debug_barrier()
            if LOW_RANK:
                copy_rows(dt_sample, point_p * dt_row, inside_p, rank, uniform, BE)
            copy_rows(B_sample, point_p * B_row, inside_p, N, uniform + rank * PART, BE)
            copy_rows(C_sample, point_p * B_row, inside_p, N, uniform + (rank + N) * PART, BE)
            tl.debug_barrier()
            point = corner + (i0 + row_q) * step_i + (j0 + column_q) * step_j
            inside = ((i0 + row_q < rows) & (j0 + column_q < columns))[:, None] & live[None, :]
            raw = tl.broadcast_to(bias_e[None, :], [PART, BE])
            if LOW_RANK:
                for low in range(rank):
                    w_e = tl.load(weight + (k * E + e_own) * rank + low)
                    raw += load_fields(uniform + low * PART, everywhere, BE) * w_e[None, :]
            else:
                at = point[:, None] * dt_row + e[None, :]
                raw += tl.load(dt_sample + at, mask=inside, other=0.0).to(tl.float32)
            x_q = tl.load(x_sample + point[:, None] * E + e[None, :], mask=inside, other=0.0).to(tl.float32)
            delta = tl.where(inside, softplus(raw), 0.0)
            u = delta * x_q
            store_fields(deltas + part * (8 * FIELD), fields, delta, BE)
            store_fields(deltas + part * (8 * FIELD) + 4 * FIELD, fields, u, BE)
            if PARTS > 1:
                if part < parts - 1:
                    left = tl.where(tj > 0, hor_tile + part * FIELD, zeros)
                    left_step = tl.where(tj > 0, STRIP * BE, 0)
                    above, above_step = above_part(part, ti, ver_tile, records + BETWEEN, zeros, RECORD, FIELD)
                    record = records
                    B_s = uniform + rank * PART
                    for _s in range(N):
                        A2_e, _dA, _R, _dR = load_field(record + PARAMETERS, field, BE)
                        a = unstack(tl.exp2(delta * A2_e[None, :]), BE)
                        Bx = unstack(load_fields(B_s, everywhere, BE) * u, BE)
                        g_left = unstack4(tl.load(left + rows4), BE)
                        _g, h = states(a, Bx, g_left, unstack4(tl.load(above + rows4), BE))
                        tl.store(record + BETWEEN + part * FIELD + rows4, stack(h[12:], BE))
                        record += RECORD
                        B_s += PART
                        left += left_step
                        above += above_step

        for done in range(parts):
            part = parts - 1 - done
            i0 = ti * STRIP + part * SIDE
            uniform = uniforms + part * (uniform_rows * PART)
            left = tl.where(tj > 0, hor_tile + part * FIELD, zeros)
            left_step = tl.where(tj > 0, STRIP * BE, 0)
            above, above_step = above_part(part, ti, ver_tile, records + BETWEEN, zeros, RECORD, FIELD)
            # The lowest part that is in the grid has nothing below it if its strip is the last one.
            lowest = part == PARTS - 1
            ends = i0 + SIDE >= rows
            under = tl.where(lowest, back_ver_tile, records + BETWEEN + part * FIELD)
            under = tl.where(ends, zeros, under)
            under_step = tl.where(ends, 0, tl.where(lowest, FIELD, RECORD))
            delta = load_fields(deltas + part * (8 * FIELD), fields, BE)
            u = load_fields(deltas + part * (8 * FIELD) + 4 * FIELD, fields, BE)
            point = corner + (i0 + row_q) * step_i + (j0 + column_q) * step_j
            inside = ((i0 + row_q < rows) & (j0 + column_q < columns))[:, None] & live[None, :]
            dy_q = tl.load(dy_sample + point[:, None] * E + e[None, :], mask=inside, other=0.0).to(tl.float32)
            delta_each = unstack(delta, BE)
            du = nothing
            dd = nothing
            record = records
            B_s = uniform + rank * PART
            slot = ((ti * across + tj) * PARTS + part) * PART
            v = tl.arange(0, 32)
            sums_s = sums + slot + v // PART * (N * slots) + v % PART
            for _s in range(N):
                A2_e, dA_e, R_e, dR_e = load_field(record + PARAMETERS, field, BE)
                B_q = load_fields(B_s, everywhere, BE)
                C_q = load_fields(B_s + N * PART, everywhere, BE)
                a = unstack(tl.exp2(delta * A2_e[None, :]), BE)
                Bx_q = B_q * u
                g_left = unstack4(tl.load(left + rows4), BE)
                h_above = unstack4(tl.load(above + rows4), BE)
                past_g, h = states(a, unstack(Bx_q, BE), g_left, h_above)
                h_q = stack(h, BE)
                past_h = h_above + h[:12]
                Cdy_q = C_q * dy_q
                lam_from = unstack(Cdy_q, BE)
                eta_in = load_field(record + part * FIELD, field, BE)
                nu = unstack4(tl.load(under + rows4), BE)
                eta = eta_in[3]
                mus = ()
                throughs = ()
                eta_out = ()
                up = ()
                for q in tl.static_range(PART - 1, -1, -1):
                    if q % 4 == 3:
                        eta = eta_in[q // 4]
                        up = ()
                    lam = nu[q % 4] + lam_from[q]
                    mu = lam + eta
                    nu_q = a[q] * lam
                    eta = a[q] * mu
                    through = nu_q * past_h[q] + eta * past_g[q]
                    dA_e += delta_each[q] * through
                    up = (nu_q,) + up
                    mus = (mu,) + mus
                    throughs = (through,) + throughs
                    if q % 4 == 0:
                        nu = up
                        eta_out = (eta,) + eta_out
                direct = stack(mus, BE)
                corrected = h_q
                if CORRECTION == 1:
                    direct -= R_e[None, :] * dy_q
                if CORRECTION == 2:
                    direct -= R_e[None, :] * Cdy_q
                    corrected -= R_e[None, :] * Bx_q
                if NEEDS_R:
                    if CORRECTION == 1:
                        dR_e -= tl.sum(Bx_q * dy_q, axis=0)
                    if CORRECTION == 2:
                        dR_e -= tl.sum(Bx_q * Cdy_q, axis=0)
                du += B_q * direct
                dd += A2_e[None, :] * stack(throughs, BE)
                store_field(record + PARAMETERS, field, (A2_e, dA_e, R_e, dR_e), BE)
                store_field(record + part * FIELD, field, eta_out, BE)
                if PARTS > 1:
                    if part > 0:
                        tl.store(record + BETWEEN + (part - 1) * FIELD + rows4, stack(nu, BE))
                tl.store(sums_s, sum_over_channels(u * direct, dy_q * corrected, BE))
                record += RECORD
                B_s += PART
                left += left_step
                above += above_step
                under += under_step
                sums_s += slots

            # The points again: kept, they would take registers from the loop above.
            point = corner + zero + (i0 + row_q) * step_i + (j0 + column_q) * step_j
            inside = ((i0 + zero + row_q < rows) & (j0 + zero + column_q < columns))[:, None] & live[None, :]
            at = point[:, None] * E + e[None, :]
            x_q = tl.load(x_sample + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(dx_sample + at, du * delta + D_e[None, :] * dy_q, mask=inside)
            draw = (dd * LN2 + du * x_q) * softplus_slope(delta)
            dD_e += tl.sum(x_q * dy_q, axis=0)
            dbias_e += tl.sum(draw, axis=0)
            if LOW_RANK:
                for low in range(0, rank, 2):
                    has_second = live & (low + 1 < rank)
                    at_w = parameters + (2 * N + 2 + low) * E + e
                    weight_w = weight + (k * E + e) * rank + low
                    first_w = tl.load(weight_w, mask=live, other=0.0)
                    second_w = tl.load(weight_w + 1, mask=has_second, other=0.0)
                    first_dt = load_fields(uniform + low * PART, everywhere, BE)
                    second_dt = load_fields(uniform + (low + 1) * PART, everywhere, BE)
                    first_dw = tl.load(at_w, mask=live, other=0.0)
                    second_dw = tl.load(at_w + E, mask=has_second, other=0.0)
                    tl.store(at_w, first_dw + tl.sum(draw * first_dt, axis=0), mask=live)
                    tl.store(at_w + E, second_dw + tl.sum(draw * second_dt, axis=0), mask=has_second)
                    at_z = sums + (2 * N + low + v // PART) * slots + slot + v % PART
                    z = sum_over_channels(draw * first_w[None, :], draw * second_w[None, :], BE)
                    tl.store(at_z, z, mask=low + v // PART < rank)
            else:
                at_dt = ((sample + point[:, None]) * directions + k) * E + e[None, :]
                tl.store(ddt + at_dt, draw, mask=inside)

    for s in range(N):
        _A, dA_e, _R, dR_e = load_field(records + s * RECORD + PARAMETERS, field, BE)
        tl.store(parameters + s * E + e, dA_e, mask=live)
        if NEEDS_R:
            tl.store(parameters + (N + s) * E + e, dR_e, mask=live)
    tl.store(parameters + 2 * N * E + e, dD_e, mask=live)
    tl.store(parameters + (2 * N + 1) * E + e, dbias_e, mask=live)
