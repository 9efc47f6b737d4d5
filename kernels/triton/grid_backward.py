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
def load4(pointer, offset):
    """Four [BE] tensors from fields of four floats; offset [BE, 4]."""
    field = tl.load(tl.multiple_of(pointer + offset, [1, 16]))
    even, odd = tl.split(tl.reshape(field, [field.shape[0], 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def store4(pointer, offset, first, second, third, fourth):
    field = tl.join(tl.join(first, third), tl.join(second, fourth))
    tl.store(tl.multiple_of(pointer + offset, [1, 16]), tl.reshape(field, [first.shape[0], 4]))


@triton.jit
def load16(pointer, offset, stride: tl.constexpr):
    return (
        load4(pointer, offset)
        + load4(pointer + stride, offset)
        + load4(pointer + 2 * stride, offset)
        + load4(pointer + 3 * stride, offset)
    )


@triton.jit
def store16(pointer, offset, values, stride: tl.constexpr):
    for q in tl.static_range(4):
        store4(pointer + q * stride, offset, values[4 * q], values[4 * q + 1], values[4 * q + 2], values[4 * q + 3])


@triton.jit
def sum_over_channels(values, BE: tl.constexpr):
    """The sums over channels of 32 tensors [BE], as one tensor [32] along the lanes.

    Splitting the axis of channels needs it in a thread's registers: the values go to the lanes, once through shared
    memory, and the sums take no shuffle.
    """
    parts = values
    for _level in tl.static_range(5):
        halves = ()
        for v in tl.static_range(len(parts) // 2):
            halves = halves + (tl.join(parts[v], parts[v + len(parts) // 2]),)
        parts = halves
    z = tl.trans(tl.reshape(parts[0], [BE, 32]))
    for _level in tl.static_range(5):
        even, odd = tl.split(tl.reshape(z, [32, z.shape[1] // 2, 2]))
        z = even + odd
    if BE == 64:
        even, odd = tl.split(z)
        z = tl.reshape(even + odd, [32, 1])
    return tl.reshape(z, [32])


@triton.jit
def part_offsets(base, step_i, step_j, i0, j0, rows, columns, E, live):
    """Of the sixteen positions: offset of the point, and which channels are inside."""
    offsets = ()
    inside = ()
    for r in tl.static_range(4):
        for c in tl.static_range(4):
            offsets = offsets + (base + (i0 + r) * step_i + (j0 + c) * step_j,)
            inside = inside + (live & (i0 + r < rows) & (j0 + c < columns),)
    return offsets, inside


@triton.jit
def copy_rows(source, at_point, inside, count, target, BE: tl.constexpr):
    """count values of each of the sixteen points to target [count, 16]; one element a lane."""
    v = tl.arange(0, BE)
    for first in range(0, count, BE // PART):
        row = first + v // PART
        values = tl.load(source + at_point + row, mask=inside & (row < count), other=0.0).to(tl.float32)
        tl.store(target + first * PART + v, values, mask=row < count)


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
    four = lane[:, None] * 4 + tl.arange(0, 4)[None, :]
    same = lane[:, None] * 0 + tl.arange(0, 4)[None, :]

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
    store4(zeros, four, none, none, none, none)
    right_end = (segment + 1) * segment_tiles * SIDE >= columns
    for s in range(N):
        A2_e = tl.load(A + (k * E + e_own) * N + s) * LOG2E
        R_e = none
        if CORRECTION > 0:
            R_e = tl.load(R + (k * E + e_own) * N + s)
        store4(records + s * RECORD + PARAMETERS, four, A2_e, none, R_e, none)
        for piece in tl.static_range(PARTS):
            eta = ()
            for r in tl.static_range(4):
                is_there = (ti * STRIP + piece * SIDE + r < rows) & (right_end == 0)
                at = (s * STRIP + piece * SIDE + r) * BE + lane
                eta = eta + (tl.load(back_hor_tile + at, mask=live & is_there, other=0.0),)
            store4(records + s * RECORD + piece * FIELD, four, eta[0], eta[1], eta[2], eta[3])
    bias_e = tl.load(bias + k * E + e_own)
    D_e = tl.load(D + k * E + e_own)
    dD_e = none
    dbias_e = none
    parameters = of_parameters + ((k * (batch * strips * segments) + b * (strips * segments)).to(tl.int64)
                                  + strip_segment) * ((2 * N + 2 + rank) * E)  # fmt: skip
    for low in range(rank):
        tl.store(parameters + (2 * N + 2 + low) * E + e, none, mask=live)
    tl.debug_barrier()

    for back in range(tiles):
        tj = last_tile - back
        j0 = tj * SIDE
        hor_tile = hor_strip + tj * (N * STRIP * BE)
        ver_tile = ver_strip + tj * (N * FIELD)
        back_ver_tile = back_ver_strip + tj * (N * FIELD)
        # What no sweep has written becomes 0, as a NaN there would reach the sums.
        if (ti * STRIP + STRIP > rows) | (j0 + SIDE > columns) | (block * BE + BE > E):
            for s in range(N):
                for r in tl.static_range(STRIP):
                    outside = (live == 0) | (ti * STRIP + r >= rows)
                    tl.store(hor_tile + (s * STRIP + r) * BE + lane, none, mask=outside)
                for c in tl.static_range(SIDE):
                    outside = (live == 0) | (j0 + c >= columns)
                    tl.store(ver_tile + s * FIELD + c * BE + lane, none, mask=outside)
                    tl.store(back_ver_tile + s * FIELD + c * BE + lane, none, mask=outside)

        # dt, B, C side by side for all lanes, then delta and delta x, and the states that enter the lower parts.
        for part in range(parts):
            i0 = ti * STRIP + part * SIDE
            p = lane % PART
            row_p = i0 + p // SIDE
            column_p = j0 + p % SIDE
            point_p = corner + row_p * step_i + column_p * step_j
            inside_p = (row_p < rows) & (column_p < columns)
            uniform = uniforms + part * (uniform_rows * PART)
            tl.debug_barrier()
            if LOW_RANK:
                copy_rows(dt_sample, point_p * dt_row, inside_p, rank, uniform, BE)
            copy_rows(B_sample, point_p * B_row, inside_p, N, uniform + rank * PART, BE)
            copy_rows(C_sample, point_p * B_row, inside_p, N, uniform + (rank + N) * PART, BE)
            tl.debug_barrier()
            offsets, inside = part_offsets(corner, step_i, step_j, i0, j0, rows, columns, E, live)
            raw = ()
            for q in tl.static_range(PART):
                if LOW_RANK:
                    raw = raw + (bias_e,)
                else:
                    dt_e = tl.load(dt_sample + offsets[q] * dt_row + e, mask=inside[q], other=0.0)
                    raw = raw + (bias_e + dt_e.to(tl.float32),)
            if LOW_RANK:
                for low in range(rank):
                    w_e = tl.load(weight + (k * E + e_own) * rank + low)
                    dt_r = load16(uniform + low * PART, same, 4)
                    more = ()
                    for q in tl.static_range(PART):
                        more = more + (raw[q] + dt_r[q] * w_e,)
                    raw = more
            delta = ()
            u = ()
            for q in tl.static_range(PART):
                delta_q = tl.where(inside[q], softplus(raw[q]), 0.0)
                x_q = tl.load(x_sample + offsets[q] * E + e, mask=inside[q], other=0.0).to(tl.float32)
                delta = delta + (delta_q,)
                u = u + (delta_q * x_q,)
            store16(deltas + part * (8 * FIELD), four, delta, FIELD)
            store16(deltas + part * (8 * FIELD) + 4 * FIELD, four, u, FIELD)
            if PARTS > 1:
                if part < parts - 1:
                    from_left = tl.where(tj > 0, hor_tile + part * FIELD, zeros)
                    left_step = tl.where(tj > 0, STRIP * BE, 0)
                    above, above_step = above_part(part, ti, ver_tile, records + BETWEEN, zeros, RECORD, FIELD)
                    record = records
                    B_s = uniform + rank * PART
                    for _s in range(N):
                        A2_e, _dA, _R, _dR = load4(record + PARAMETERS, four)
                        Bs = load16(B_s, same, 4)
                        h = ()
                        for c in tl.static_range(4):
                            h = h + (tl.load(above + c * BE + lane),)
                        for r in tl.static_range(4):
                            g = tl.load(from_left + r * BE + lane)
                            below = ()
                            for c in tl.static_range(4):
                                a = tl.exp2(delta[4 * r + c] * A2_e)
                                g = a * g + Bs[4 * r + c] * u[4 * r + c]
                                below = below + (a * h[c] + g,)
                            h = below
                        for c in tl.static_range(4):
                            tl.store(record + BETWEEN + part * FIELD + c * BE + lane, h[c])
                        record += RECORD
                        B_s += PART
                        from_left += left_step
                        above += above_step

        for done in range(parts):
            part = parts - 1 - done
            i0 = ti * STRIP + part * SIDE
            uniform = uniforms + part * (uniform_rows * PART)
            from_left = tl.where(tj > 0, hor_tile + part * FIELD, zeros)
            left_step = tl.where(tj > 0, STRIP * BE, 0)
            above, above_step = above_part(part, ti, ver_tile, records + BETWEEN, zeros, RECORD, FIELD)
            # The lowest part that is in the grid has nothing below it if its strip is the last one.
            lowest = part == PARTS - 1
            ends = ti * STRIP + (part + 1) * SIDE >= rows
            under = tl.where(lowest, back_ver_tile, records + BETWEEN + part * FIELD)
            under = tl.where(ends, zeros, under)
            under_step = tl.where(ends, 0, tl.where(lowest, FIELD, RECORD))
            delta = load16(deltas + part * (8 * FIELD), four, FIELD)
            u = load16(deltas + part * (8 * FIELD) + 4 * FIELD, four, FIELD)
            offsets, inside = part_offsets(corner, step_i, step_j, i0, j0, rows, columns, E, live)
            dys = ()
            du = ()
            dd = ()
            for q in tl.static_range(PART):
                dy_q = tl.load(dy_sample + offsets[q] * E + e, mask=inside[q], other=0.0)
                dys = dys + (dy_q.to(tl.float32),)
                du = du + (none,)
                dd = dd + (none,)
            record = records
            B_s = uniform + rank * PART
            slot = ((ti * across + tj) * PARTS + part) * PART
            v = tl.arange(0, 32)
            sums_s = sums + slot + v // PART * (N * slots) + v % PART
            for _s in range(N):
                A2_e, dA_e, R_e, dR_e = load4(record + PARAMETERS, four)
                eta_in = load4(record + part * FIELD, four)
                Bs = load16(B_s, same, 4)
                Cs = load16(B_s + N * PART, same, 4)
                h = ()
                for c in tl.static_range(4):
                    h = h + (tl.load(above + c * BE + lane),)
                a = ()
                past_g = ()
                past_h = ()
                zC = ()
                for r in tl.static_range(4):
                    g = tl.load(from_left + r * BE + lane)
                    below = ()
                    for c in tl.static_range(4):
                        a_q = tl.exp2(delta[4 * r + c] * A2_e)
                        past_g = past_g + (g,)
                        past_h = past_h + (h[c],)
                        Bx = Bs[4 * r + c] * u[4 * r + c]
                        g = a_q * g + Bx
                        h_q = a_q * h[c] + g
                        a = a + (a_q,)
                        below = below + (h_q,)
                        if CORRECTION == 2:
                            zC = zC + (dys[4 * r + c] * (h_q - R_e * Bx),)
                        else:
                            zC = zC + (dys[4 * r + c] * h_q,)
                    h = below
                zB = ()
                new_du = ()
                new_dd = ()
                eta_out = ()
                nu = ()
                for c in tl.static_range(4):
                    nu = nu + (tl.load(under + c * BE + lane),)
                up = ()
                eta = none
                for q in tl.static_range(PART - 1, -1, -1):
                    if q % 4 == 3:
                        eta = eta_in[q // 4]
                        up = ()
                    lam = nu[q % 4] + Cs[q] * dys[q]
                    mu = lam + eta
                    nu_q = a[q] * lam
                    eta = a[q] * mu
                    through = nu_q * past_h[q] + eta * past_g[q]
                    up = (nu_q,) + up
                    direct = mu
                    if CORRECTION == 1:
                        direct = mu - R_e * dys[q]
                    if CORRECTION == 2:
                        direct = mu - R_e * (Cs[q] * dys[q])
                    zB = (u[q] * direct,) + zB
                    new_du = (du[q] + Bs[q] * direct,) + new_du
                    new_dd = (dd[q] + A2_e * through,) + new_dd
                    dA_e += delta[q] * through
                    if NEEDS_R:
                        if CORRECTION == 1:
                            dR_e -= (Bs[q] * u[q]) * dys[q]
                        if CORRECTION == 2:
                            dR_e -= (Bs[q] * u[q]) * (Cs[q] * dys[q])
                    if q % 4 == 0:
                        nu = up
                        eta_out = (eta,) + eta_out
                du = new_du
                dd = new_dd
                store4(record + PARAMETERS, four, A2_e, dA_e, R_e, dR_e)
                store4(record + part * FIELD, four, eta_out[0], eta_out[1], eta_out[2], eta_out[3])
                if PARTS > 1:
                    if part > 0:
                        for c in tl.static_range(4):
                            tl.store(record + BETWEEN + (part - 1) * FIELD + c * BE + lane, nu[c])
                tl.store(sums_s, sum_over_channels(zB + zC, BE))
                record += RECORD
                B_s += PART
                from_left += left_step
                above += above_step
                under += under_step
                sums_s += slots

            # The offsets again: kept, they would take registers from the loop above.
            offsets, inside = part_offsets(corner + zero, step_i, step_j, i0, j0, rows, columns, E, live)
            draws = ()
            for q in tl.static_range(PART):
                tl.store(dx_sample + offsets[q] * E + e, du[q] * delta[q] + D_e * dys[q], mask=inside[q])
                x_q = tl.load(x_sample + offsets[q] * E + e, mask=inside[q], other=0.0).to(tl.float32)
                draw = (dd[q] * LN2 + du[q] * x_q) * softplus_slope(delta[q])
                dD_e += x_q * dys[q]
                dbias_e += draw
                draws = draws + (draw,)
                if not LOW_RANK:
                    tl.store(ddt + ((sample + offsets[q]) * directions + k) * E + e, draw, mask=inside[q])
            if LOW_RANK:
                for low in range(0, rank, 2):
                    z = ()
                    for second in tl.static_range(2):
                        exists = live & (low + second < rank)
                        at_w = parameters + (2 * N + 2 + low + second) * E + e
                        w_e = tl.load(weight + (k * E + e) * rank + low + second, mask=exists, other=0.0)
                        dw_e = tl.load(at_w, mask=exists, other=0.0)
                        dt_r = load16(uniform + (low + second) * PART, same, 4)
                        for q in tl.static_range(PART):
                            z = z + (draws[q] * w_e,)
                            dw_e += draws[q] * dt_r[q]
                        tl.store(at_w, dw_e, mask=exists)
                    at_z = sums + (2 * N + low + v // PART) * slots + slot + v % PART
                    tl.store(at_z, sum_over_channels(z, BE), mask=low + v // PART < rank)

    for s in range(N):
        _A, dA_e, _R, dR_e = load4(records + s * RECORD + PARAMETERS, four)
        tl.store(parameters + s * E + e, dA_e, mask=live)
        if NEEDS_R:
            tl.store(parameters + (N + s) * E + e, dR_e, mask=live)
    tl.store(parameters + 2 * N * E + e, dD_e, mask=live)
    tl.store(parameters + (2 * N + 1) * E + e, dbias_e, mask=live)
