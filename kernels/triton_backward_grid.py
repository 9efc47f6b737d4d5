"""The adjoint of the 2d scan as a Triton kernel, for one scan direction. The equations are in triton_backward.

Two sweeps of the forward kernel have left the carries into every tile: P_hor and P_ver of the states, Q_hor and Q_ver
of the adjoint states. So tiles do not wait for each other: one program takes one tile and a block of channels. A loop
over tiles would keep addresses and sums in registers all the time, which larger tiles need; and a tile twice as large
has half the carries.
"""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton_tiles import (
    LOG2E,
    along_lanes,
    backwards,
    compose,
    compose_with_past,
    load_parameters,
    load_time_step,
    neighbour_backwards,
    only_if,
    softplus_slope,
    tile_positions,
)


@triton.jit(do_not_specialize=["first", "state_rows", "adjoint_rows", "point_i", "point_j"])
def grid_backward_kernel(
    x, dt, A, B, C, D, R, bias, weight, dy, P_hor, P_ver, Q_hor, Q_ver,
    dx, ddt, dBC, dA, dR, dD, dbias, dweight,
    HT, WT, E, N, blocks, state_rows, adjoint_rows, first, positions,
    x_b, x_i, x_j, dt_b, dt_i, dt_j, B_b, B_i, B_j, dy_b, dy_i, dy_j, dx_b, dx_i, dx_j,
    ddt_b, ddt_i, ddt_j, point_b, point_i, point_j,
    CORRECTION: tl.constexpr, RANK: tl.constexpr, RANK_BLOCK: tl.constexpr, NEEDS_R: tl.constexpr,
    TH: tl.constexpr, TW: tl.constexpr, BE: tl.constexpr, N_BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Gradients of one direction of a 2d scan. Adds to dx; the other outputs belong to this direction alone.

    P_hor [B, state_rows, tiles of a row, N, TH, E], P_ver [B, state_rows, N, columns, E]: the carries into every tile
    and row of tiles. Q_ver [B, adjoint_rows, tiles of a column, N, TW, E], Q_hor [B, adjoint_rows, N, rows, E]: the
    same of the adjoint states Abar lam and Abar mu, as the sweep of the transposed grid from its end leaves them.
    dBC [blocks, N + N + r, points]: partials of dB, dC and, of a low-rank dt, ddt; a point is b H W + i W + j.
    dA, dR [B, tiles, N, E], dD, dbias [B, tiles, E], dweight [B, tiles, r, E]: partials.
    """
    P: tl.constexpr = TH * TW
    program = tl.program_id(0)
    tiles_h = tl.cdiv(HT, TH)
    tiles_w = tl.cdiv(WT, TW)
    block = (program % blocks).to(tl.int64)
    tile_j = (program // blocks) % tiles_w
    tile_i = (program // (blocks * tiles_w)) % tiles_h
    part = (program // blocks).to(tl.int64)  # of all tiles of the batch
    b = part // (tiles_w * tiles_h)
    first_channel = block * BE
    positions += 0 * b  # 64-bit from here on: N times the points of a large batch exceeds 32
    channel = tl.arange(0, BE)
    is_channel = tl.full([BE], 1, tl.int1) if EVEN else first_channel + channel < E
    p = tl.arange(0, P)
    row = tl.arange(0, TH)
    column = tl.arange(0, TW)
    rank = tl.arange(0, RANK_BLOCK)

    i0, j0, i, j, inside = tile_positions(tile_i, tile_j, 0, 0, HT, WT, True, TH, TW)
    is_element = inside[:, None] & is_channel[None, :]
    dt += b * dt_b + i0 * dt_i + j0 * dt_j
    weight_re = 0.0
    if RANK > 0:
        weight_re = load_parameters(weight + first_channel * RANK, channel, is_channel, rank, RANK)
    else:
        dt += first_channel
    bias_e = tl.load(bias + first_channel + channel, mask=is_channel, other=0.0)
    delta, _low = load_time_step(
        dt, i * dt_i + j * dt_j, inside, channel, is_channel, bias_e, weight_re, RANK, RANK_BLOCK
    )  # fmt: skip
    x += b * x_b + i0 * x_i + j0 * x_j + first_channel
    dy += b * dy_b + i0 * dy_i + j0 * dy_j + first_channel
    x_pointer = x + (i * x_i + j * x_j)[:, None] + channel[None, :]
    dy_pointer = dy + (i * dy_i + j * dy_j)[:, None] + channel[None, :]
    delta = along_lanes(delta)
    x_tile = along_lanes(tl.load(x_pointer, mask=is_element, other=0.0).to(tl.float32))
    dy_tile = along_lanes(tl.load(dy_pointer, mask=is_element, other=0.0).to(tl.float32))

    B += b * B_b + i0 * B_i + j0 * B_j
    C += b * B_b + i0 * B_i + j0 * B_j
    B_offset = i * B_i + j * B_j
    dBC += block * (2 * N + RANK) * positions + b * point_b + i0 * point_i + j0 * point_j
    point = i * point_i + j * point_j
    A += first_channel * N
    R += first_channel * N
    dA += part * N * E + first_channel
    dR += part * N * E + first_channel
    # The adjoint sweep counts rows of tiles from the right, and the tiles in them from the bottom.
    from_right = adjoint_rows - 1 - tile_j
    from_bottom = tiles_h - 1 - tile_i
    P_hor += ((b * state_rows + tile_i) * tiles_w + tile_j) * N * TH * E + first_channel
    P_ver += ((b * state_rows + tile_i) * N * tiles_w + tile_j) * TW * E + first_channel
    Q_ver += ((b * adjoint_rows + from_right) * tiles_h + from_bottom) * N * TW * E + first_channel
    Q_hor += ((b * adjoint_rows + from_right) * N * tiles_h + from_bottom) * TH * E + first_channel
    hor_offset = row[:, None] * E + channel[None, :]
    ver_offset = column[:, None] * E + channel[None, :]
    has_left = only_if(is_channel[None, :], tile_j)
    has_above = only_if(is_channel[None, :], tile_i)
    has_right = only_if(is_channel[None, :], tiles_w - 1 - tile_j)
    has_below = only_if(is_channel[None, :], from_bottom)
    du = tl.zeros([P, BE], tl.float32)
    ddelta = tl.zeros([P, BE], tl.float32)

    for s in range(N):
        A_e = tl.load(A + (channel * N + s), mask=is_channel, other=0.0)
        B_p = tl.load(B + (B_offset + s), mask=inside, other=0.0).to(tl.float32)
        C_p = tl.load(C + (B_offset + s), mask=inside, other=0.0).to(tl.float32)
        a = tl.exp2(delta * (A_e * LOG2E)[None, :])
        # The adjoint states first, then the states: fewer of them are alive at a time. A carry joins the first row or
        # column, so that products of Abar along the tile need not outlive a scan.
        q_back = tl.reshape(backwards(C_p[:, None] * dy_tile), [TH, TW, BE])
        carry = tl.load(Q_ver + (ver_offset + s * TW * E), mask=has_below, other=0.0)
        q_back += tl.where(row[:, None, None] == 0, carry[None, :, :], 0.0)
        below = tl.reshape(neighbour_backwards(a, TW, p >= TW), [TH, TW, BE])
        _product, lam3 = tl.associative_scan((below, q_back), 0, compose)
        carry = tl.load(Q_hor + (hor_offset + s * tiles_h * TH * E), mask=has_right, other=0.0)
        lam_in = lam3 + tl.where(column[None, :, None] == 0, carry[:, None, :], 0.0)
        right = tl.reshape(neighbour_backwards(a, 1, p % TW > 0), [TH, TW, BE])
        _product, mu3 = tl.associative_scan((right, lam_in), 1, compose)
        lam = backwards(tl.reshape(lam3, [P, BE]))
        mu = backwards(tl.reshape(mu3, [P, BE]))

        bx = B_p[:, None] * (delta * x_tile)
        a3 = tl.reshape(a, [TH, TW, BE])
        carry = tl.load(P_hor + (hor_offset + s * TH * E), mask=has_left, other=0.0)
        from_left = tl.where(column[None, :, None] == 0, a3 * carry[:, None, :], 0.0)
        bx3 = tl.reshape(bx, [TH, TW, BE]) + from_left
        _product, g, past_g = tl.associative_scan((a3, bx3, from_left), 1, compose_with_past)
        through_a = mu * tl.reshape(past_g, [P, BE])
        carry = tl.load(P_ver + (ver_offset + s * tiles_w * TW * E), mask=has_above, other=0.0)
        from_above = tl.where(row[:, None, None] == 0, a3 * carry[None, :, :], 0.0)
        _product, h3, past_h = tl.associative_scan((a3, g + from_above, from_above), 0, compose_with_past)
        h = tl.reshape(h3, [P, BE])
        through_a += lam * tl.reshape(past_h, [P, BE])

        read = h
        direct = mu
        if CORRECTION > 0:
            R_e = tl.load(R + (channel * N + s), mask=is_channel, other=0.0)
            if CORRECTION == 1:
                direct = mu - R_e[None, :] * dy_tile
            else:
                direct = mu - C_p[:, None] * R_e[None, :] * dy_tile
                read = h - R_e[None, :] * bx
        du += B_p[:, None] * direct
        ddelta += A_e[None, :] * through_a
        tl.store(dBC + s * positions + point, tl.sum(delta * x_tile * direct, axis=1), mask=inside)
        tl.store(dBC + (N + s) * positions + point, tl.sum(dy_tile * read, axis=1), mask=inside)
        tl.store(dA + (channel + s * E), tl.sum(delta * through_a, axis=0), mask=is_channel)
        if NEEDS_R:
            corrected = bx * dy_tile
            if CORRECTION == 2:
                corrected *= C_p[:, None]
            tl.store(dR + (channel + s * E), -tl.sum(corrected, axis=0), mask=is_channel)

    dx += b * dx_b + i0 * dx_i + j0 * dx_j + first_channel
    dx_pointer = dx + (i * dx_i + j * dx_j)[:, None] + channel[None, :]
    skip_e = tl.load(D + first_channel + channel, mask=is_channel, other=0.0)
    before = tl.load(dx_pointer, mask=only_if(is_element, 1 - first), other=0.0)
    tl.store(dx_pointer, before + du * delta + skip_e[None, :] * dy_tile, mask=is_element)
    draw = (ddelta + du * x_tile) * softplus_slope(delta)
    tl.store(dD + part * E + first_channel + channel, tl.sum(x_tile * dy_tile, axis=0), mask=is_channel)
    tl.store(dbias + part * E + first_channel + channel, tl.sum(draw, axis=0), mask=is_channel)
    if RANK > 0:
        # One factor at a time: as a matrix product, a thread would hold a whole row of both.
        for q in range(RANK):
            weight_e = tl.load(weight + first_channel * RANK + (channel * RANK + q), mask=is_channel, other=0.0)
            tl.store(dBC + (2 * N + q) * positions + point, tl.sum(draw * weight_e[None, :], axis=1), mask=inside)
            low_p = tl.load(dt + (i * dt_i + j * dt_j + q), mask=inside, other=0.0).to(tl.float32)
            dweight_pointer = dweight + (part * RANK + q) * E + first_channel + channel
            tl.store(dweight_pointer, tl.sum(draw * low_p[:, None], axis=0), mask=is_channel)
    else:
        ddt += b * ddt_b + i0 * ddt_i + j0 * ddt_j + first_channel
        tl.store(ddt + (i * ddt_i + j * ddt_j)[:, None] + channel[None, :], draw, mask=is_element)
