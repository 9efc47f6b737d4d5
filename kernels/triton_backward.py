"""The adjoint of Algorithm 2 as a Triton kernel, for one scan direction.

Tiles as in the forward kernel, walked from the last to the first. In a tile the states are recomputed from the
carries into it, then the adjoint states run against the scan order:

    1d  lam[t] = C[t] dy[t] + Abar[t+1] lam[t+1]
    2d  lam[i,j] = C[i,j] dy[i,j] + Abar[i+1,j] lam[i+1,j],   mu[i,j] = lam[i,j] + Abar[i,j+1] mu[i,j+1]

where lam belongs to h, mu to g (1d: mu = lam). With Bx = B delta x, and the correction R Bx taken from y
("equation") or from h ("state", which puts a factor C before R below):

    d(delta x) = sum_s B (mu - R dy)              dB = sum_e delta x (mu - R dy)
    d(delta)   = d(delta x) x + sum_s A (lam Abar h[before] + mu Abar g[before])
    dA = sum_t delta (lam Abar h[before] + mu Abar g[before])
    dC = sum_e dy h                               dR = -sum_t Bx dy

No sum crosses programs: what is summed over channels leaves one partial per channel block, what is summed over
positions one per sample, and torch adds them in a fixed order. So two runs are bit-equal.
"""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton_forward import (
    LOG2E,
    along_lanes,
    compose,
    load_parameters,
    load_time_step,
    only_if,
    pick,
    tile_positions,
)


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


@triton.jit(do_not_specialize=["first", "point_i", "point_j"])
def backward_kernel(
    x, dt, A, B, C, D, R, bias, weight, dy, kept, P_hor, P_ver,
    dx, ddt, dB, dC, dA, dR, dD, dbias, dweight, Q_hor, Q_ver,
    HT, WT, E, N, blocks, first, positions,
    x_b, x_i, x_j, dt_b, dt_i, dt_j, B_b, B_i, B_j, C_b, C_i, C_j, dy_b, dy_i, dy_j, dx_b, dx_i, dx_j,
    ddt_b, ddt_i, ddt_j, point_b, point_i, point_j,
    TWO_D: tl.constexpr, CORRECTION: tl.constexpr, RANK: tl.constexpr, RANK_BLOCK: tl.constexpr, NEEDS_R: tl.constexpr,
    TH: tl.constexpr, TW: tl.constexpr, BE: tl.constexpr, N_BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Gradients of one direction. Adds to dx; the other outputs belong to this direction alone.

    kept, P_hor, P_ver: the carries into every tile, as the forward kernel leaves them with KEEP.
    Q_hor [B, 2, N, TH, E], Q_ver [B, 2, tiles of a row, N, TW, E]: the adjoint carries Abar mu and Abar lam (2d).
    dB, dC [blocks, N, points] and with a low-rank dt ddt [blocks, r, points]: partials, a point is b H W + i W + j.
    dA, dR [B, N, E], dD, dbias [B, E], dweight [B, r, E]: partials.
    """
    P: tl.constexpr = TH * TW
    program = tl.program_id(0)
    block = (program % blocks).to(tl.int64)
    b = (program // blocks).to(tl.int64)
    first_channel = block * BE
    positions += 0 * b  # 64-bit from here on: N times the points of a large batch exceeds 32
    channel = tl.arange(0, BE)
    is_channel = tl.full([BE], 1, tl.int1) if EVEN else first_channel + channel < E
    dstate = tl.arange(0, N_BLOCK)
    p = tl.arange(0, P)
    tiles_w = tl.cdiv(WT, TW)
    tiles = tl.cdiv(HT, TH) * tiles_w if TWO_D else tl.cdiv(HT * WT, P)

    # Scalar 64-bit steps to this sample and block, so that offsets inside a block are short.
    x += b * x_b + first_channel
    dt += b * dt_b
    B += b * B_b
    C += b * C_b
    dy += b * dy_b + first_channel
    dx += b * dx_b + first_channel
    if RANK > 0:
        ddt += block * RANK * positions + b * point_b
    else:
        dt += first_channel
        ddt += b * ddt_b + first_channel
    A += first_channel * N
    R += first_channel * N
    weight += first_channel * RANK
    bias += first_channel
    D += first_channel
    kept += first_channel
    P_hor += first_channel
    P_ver += first_channel
    Q_hor += first_channel
    Q_ver += first_channel
    dA += b * N * E + first_channel
    dR += b * N * E + first_channel
    dD += b * E + first_channel
    dbias += b * E + first_channel
    dweight += b * RANK * E + first_channel
    dB += block * N * positions + b * point_b
    dC += block * N * positions + b * point_b

    A_ne = load_parameters(A, channel, is_channel, dstate, N)
    R_ne = A_ne
    if CORRECTION > 0:
        R_ne = load_parameters(R, channel, is_channel, dstate, N)
    weight_re = 0.0
    rank = tl.arange(0, RANK_BLOCK)
    if RANK > 0:
        weight_re = load_parameters(weight, channel, is_channel, rank, RANK)
        dweight_re = tl.zeros([RANK_BLOCK, BE], tl.float32)
    # Two tables on chip. A warp has 32 lanes or more and N is mostly 16, so a table's second half costs no registers:
    # sums holds dA, dR; flow holds the adjoint states between tiles (1d), dD, dbias.
    tl.static_assert(N_BLOCK >= 2)
    row_of_table = tl.arange(0, 2 * N_BLOCK)
    sums = tl.zeros([2 * N_BLOCK, BE], tl.float32)
    flow = tl.zeros([2 * N_BLOCK, BE], tl.float32)

    for walked in range(tiles):
        tile = tiles - 1 - walked
        i, j, inside = tile_positions(tile, HT, WT, TWO_D, TH, TW)
        is_element = inside[:, None] & is_channel[None, :]
        bias_e = tl.load(bias + channel, mask=is_channel, other=0.0)
        delta, low = load_time_step(
            dt, i * dt_i + j * dt_j, inside, channel, is_channel, bias_e, weight_re, RANK, RANK_BLOCK
        )
        x_tile = tl.load(x + (i * x_i + j * x_j)[:, None] + channel[None, :], mask=is_element, other=0.0).to(tl.float32)
        dy_tile = tl.load(dy + (i * dy_i + j * dy_j)[:, None] + channel[None, :], mask=is_element, other=0.0)
        delta = along_lanes(delta)
        x_tile = along_lanes(x_tile)
        dy_tile = along_lanes(dy_tile.to(tl.float32))
        u = delta * x_tile
        B_offset = i * B_i + j * B_j
        C_offset = i * C_i + j * C_j
        point = i * point_i + j * point_j
        du = tl.zeros([P, BE], tl.float32)
        ddelta = tl.zeros([P, BE], tl.float32)
        if TWO_D:
            tile_i = tile // tiles_w
            tile_j = tile % tiles_w
            row = tl.arange(0, TH)
            column = tl.arange(0, TW)
            hor_offset = row[:, None] * E + channel[None, :]
            ver_offset = column[:, None] * E + channel[None, :]
            hor_back = (TH - 1 - row)[:, None] * E + channel[None, :]
            ver_back = (TW - 1 - column)[:, None] * E + channel[None, :]
            hor_base = P_hor + (b * tiles + tile) * N * TH * E
            ver_base = P_ver + (b * tiles + tile) * N * TW * E
            hor_in = Q_hor + (b * 2 + tile_j % 2) * N * TH * E
            hor_out = Q_hor + (b * 2 + (tile_j + 1) % 2) * N * TH * E
            ver_in = Q_ver + ((b * 2 + tile_i % 2) * tiles_w + tile_j) * N * TW * E
            ver_out = Q_ver + ((b * 2 + (tile_i + 1) % 2) * tiles_w + tile_j) * N * TW * E
            has_right = only_if(is_channel[None, :], tiles_w - 1 - tile_j)
            has_below = only_if(is_channel[None, :], tiles - tiles_w - tile)
        else:
            kept_base = kept + (b * tiles + tile) * N * E

        for s in range(N):
            A_e = pick(A_ne, dstate, s)
            B_p = tl.load(B + B_offset + s, mask=inside, other=0.0).to(tl.float32)
            C_p = tl.load(C + C_offset + s, mask=inside, other=0.0).to(tl.float32)
            a = tl.exp2(delta * (A_e * LOG2E)[None, :])
            # The adjoint states first, then the states: fewer of them are alive at a time.
            q_back = backwards(C_p[:, None] * dy_tile)
            if TWO_D:
                carry = tl.load(ver_in + s * TW * E + ver_back, mask=has_below, other=0.0)
                below = tl.reshape(neighbour_backwards(a, TW, p >= TW), [TH, TW, BE])
                a_column, lam3 = tl.associative_scan((below, tl.reshape(q_back, [TH, TW, BE])), 0, compose)
                lam3 += a_column * carry[None, :, :]
                right = tl.reshape(neighbour_backwards(a, 1, p % TW > 0), [TH, TW, BE])
                carry = tl.load(hor_in + s * TH * E + hor_back, mask=has_right, other=0.0)
                a_row, mu3 = tl.associative_scan((right, lam3), 1, compose)
                mu3 += a_row * carry[:, None, :]
                lam = backwards(tl.reshape(lam3, [P, BE]))
                mu = backwards(tl.reshape(mu3, [P, BE]))
            else:
                a_sequence, lam_back = tl.associative_scan((neighbour_backwards(a, 1, p > 0), q_back), 0, compose)
                lam_back += a_sequence * pick(flow, row_of_table, s)[None, :]
                mu = backwards(lam_back)

            bx = B_p[:, None] * u
            if TWO_D:
                a3 = tl.reshape(a, [TH, TW, BE])
                first_column = tl.where(column[None, :, None] == 0, a3 * tl.reshape(mu, [TH, TW, BE]), 0.0)
                first_row = tl.where(row[:, None, None] == 0, a3 * tl.reshape(lam, [TH, TW, BE]), 0.0)
                at_left, at_top = only_if(is_channel[None, :], tile_j), only_if(is_channel[None, :], tile_i)
                tl.store(hor_out + s * TH * E + hor_offset, tl.sum(first_column, axis=1), mask=at_left)
                tl.store(ver_out + s * TW * E + ver_offset, tl.sum(first_row, axis=0), mask=at_top)

                zero = tl.zeros([TH, TW, BE], tl.float32)
                carry = tl.load(hor_base + s * TH * E + hor_offset, mask=at_left, other=0.0)
                bx3 = tl.reshape(bx, [TH, TW, BE])
                a_row, g, past_g = tl.associative_scan((a3, bx3, zero), 1, compose_with_past)
                g += a_row * carry[:, None, :]
                past_g += a_row * carry[:, None, :]
                through_a = mu * tl.reshape(past_g, [P, BE])
                carry = tl.load(ver_base + s * TW * E + ver_offset, mask=at_top, other=0.0)
                a_column, h3, past_h = tl.associative_scan((a3, g, zero), 0, compose_with_past)
                h = tl.reshape(h3 + a_column * carry[None, :, :], [P, BE])
                past_h += a_column * carry[None, :, :]
                through_a += lam * tl.reshape(past_h, [P, BE])
            else:
                start = tl.sum(tl.where(p[:, None] == 0, a * mu, 0.0), axis=0)
                flow = tl.where(row_of_table[:, None] == s, start[None, :], flow)
                carry = tl.load(kept_base + s * E + channel, mask=is_channel, other=0.0)
                zero = tl.zeros([P, BE], tl.float32)
                a_sequence, h, past_h = tl.associative_scan((a, bx, zero), 0, compose_with_past)
                h += a_sequence * carry[None, :]
                through_a = mu * (past_h + a_sequence * carry[None, :])

            read = h
            direct = mu
            if CORRECTION == 1:
                direct = mu - pick(R_ne, dstate, s)[None, :] * dy_tile
            elif CORRECTION == 2:
                R_e = pick(R_ne, dstate, s)
                direct = mu - C_p[:, None] * R_e[None, :] * dy_tile
                read = h - R_e[None, :] * bx
            du += B_p[:, None] * direct
            ddelta += A_e[None, :] * through_a
            tl.store(dB + s * positions + point, tl.sum(u * direct, axis=1), mask=inside)
            tl.store(dC + s * positions + point, tl.sum(dy_tile * read, axis=1), mask=inside)
            sums = add_to_row(sums, row_of_table, s, tl.sum(delta * through_a, axis=0))
            if NEEDS_R:
                corrected = bx * dy_tile
                if CORRECTION == 2:
                    corrected *= C_p[:, None]
                sums = add_to_row(sums, row_of_table, N_BLOCK + s, -tl.sum(corrected, axis=0))

        dx_pointer = dx + (i * dx_i + j * dx_j)[:, None] + channel[None, :]
        skip_e = tl.load(D + channel, mask=is_channel, other=0.0)
        before = tl.load(dx_pointer, mask=only_if(is_element, 1 - first), other=0.0)
        tl.store(dx_pointer, before + du * delta + skip_e[None, :] * dy_tile, mask=is_element)
        draw = (ddelta + du * x_tile) * softplus_slope(delta)
        flow = add_to_row(flow, row_of_table, N_BLOCK, tl.sum(x_tile * dy_tile, axis=0))
        flow = add_to_row(flow, row_of_table, N_BLOCK + 1, tl.sum(draw, axis=0))
        if RANK > 0:
            dlow = tl.dot(draw, tl.trans(weight_re), input_precision="ieee")
            tl.store(
                ddt + point[:, None] + rank[None, :] * positions,
                dlow,
                mask=inside[:, None] & (rank[None, :] < RANK),
            )
            dweight_re += tl.dot(tl.trans(low), draw, input_precision="ieee")
        else:
            tl.store(ddt + (i * ddt_i + j * ddt_j)[:, None] + channel[None, :], draw, mask=is_element)
        if TWO_D:
            tl.debug_barrier()  # the next tile reads carries that other threads of this program wrote

    row = row_of_table[:, None]
    tl.store(dA + row * E + channel[None, :], sums, mask=(row < N) & is_channel[None, :])
    if NEEDS_R:
        is_R = (row >= N_BLOCK) & (row < N_BLOCK + N)
        tl.store(dR + (row - N_BLOCK) * E + channel[None, :], sums, mask=is_R & is_channel[None, :])
    tl.store(dD + 0 * row + channel[None, :], flow, mask=(row == N_BLOCK) & is_channel[None, :])
    tl.store(dbias + 0 * row + channel[None, :], flow, mask=(row == N_BLOCK + 1) & is_channel[None, :])
    if RANK > 0:
        tl.store(
            dweight + rank[:, None] * E + channel[None, :],
            dweight_re,
            mask=(rank[:, None] < RANK) & is_channel[None, :],
        )
