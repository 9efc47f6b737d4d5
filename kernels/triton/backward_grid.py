"""The adjoint of the 2d scan as a Triton kernel, for one scan direction. The equations are in triton_backward.

One program takes one tile and a bundle of channel blocks. It loads B, C and a low-rank dt of the tile once, takes one
block after the other through it and sums their dB, dC and ddt on chip. A sweep of the forward kernel has left the
carries of the states into every tile. Those of the adjoint states come from the tiles to the right and below:

    PASS_ON   the host launches one diagonal of tiles after the other, from the last to the first, and each tile hands
              its adjoint states on. Nothing is read twice, and a large batch fills a GPU with each diagonal.
    else      a sweep of the adjoint states has left them too, and all tiles run at once.

A loop over tiles would keep indices and sums over positions in registers too, which larger tiles need; and a tile
twice as large has half the carries.
"""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.gradients import correct, correction_gradient, write_gradients
from geomano_hpc.kernels.triton.tiles import (
    LOG2E,
    add_to_column,
    add_to_row,
    along_lanes,
    backwards,
    compose,
    compose_with_past,
    load_parameters,
    neighbour_backwards,
    only_if,
    pick,
    pick_column,
    softplus,
)


@triton.jit
def scan_tile(
    delta, x_tile, dy_tile, A_e, B_p, C_p, hor, ver, back_hor, back_ver, TH: tl.constexpr, TW: tl.constexpr
):  # fmt: skip
    """h, mu and lam Abar h[before] + mu Abar g[before] of a tile [TH TW, BE], and what it hands on: Abar lam of its
    first row [TW, BE] and Abar mu of its first column [TH, BE].

    hor, ver: g and h before its first column and row. back_hor, back_ver: Abar mu and Abar lam behind its last column
    and row, both counted from the end.
    """
    P: tl.constexpr = TH * TW
    BE: tl.constexpr = delta.shape[1]
    p = tl.arange(0, P)
    row = tl.arange(0, TH)[:, None, None]
    column = tl.arange(0, TW)[None, :, None]
    a = tl.exp2(delta * (A_e * LOG2E)[None, :])
    a3 = tl.reshape(a, [TH, TW, BE])
    # The adjoint states first, then the states: fewer of them are alive at a time. A carry joins the first row or
    # column, so that products of Abar along the tile need not outlive a scan.
    q_back = tl.reshape(backwards(C_p[:, None] * dy_tile), [TH, TW, BE])
    q_back += tl.where(row == 0, back_ver[None, :, :], 0.0)
    below = tl.reshape(neighbour_backwards(a, TW, p >= TW), [TH, TW, BE])
    _product, lam3 = tl.associative_scan((below, q_back), 0, compose)
    lam_in = lam3 + tl.where(column == 0, back_hor[:, None, :], 0.0)
    right = tl.reshape(neighbour_backwards(a, 1, p % TW > 0), [TH, TW, BE])
    _product, mu3 = tl.associative_scan((right, lam_in), 1, compose)
    lam = backwards(tl.reshape(lam3, [P, BE]))
    mu = backwards(tl.reshape(mu3, [P, BE]))
    up = tl.sum(tl.where(row == 0, tl.reshape(a * lam, [TH, TW, BE]), 0.0), axis=0)
    left = tl.sum(tl.where(column == 0, tl.reshape(a * mu, [TH, TW, BE]), 0.0), axis=1)

    from_left = tl.where(column == 0, a3 * hor[:, None, :], 0.0)
    bx = tl.reshape(B_p[:, None] * delta * x_tile, [TH, TW, BE])
    _product, g, past_g = tl.associative_scan((a3, bx + from_left, from_left), 1, compose_with_past)
    through_a = mu * tl.reshape(past_g, [P, BE])
    from_above = tl.where(row == 0, a3 * ver[None, :, :], 0.0)
    _product, h3, past_h = tl.associative_scan((a3, g + from_above, from_above), 0, compose_with_past)
    through_a += lam * tl.reshape(past_h, [P, BE])
    return tl.reshape(h3, [P, BE]), mu, through_a, up, left


@triton.jit(do_not_specialize=["first", "bundle", "count", "diagonal", "first_row", "corner", "point_i", "point_j"])
def grid_backward_kernel(
    x, dt, A, B, C, D, R, bias, weight, dy, P_hor, P_ver, Q_hor, Q_ver,
    dx, ddt, dBC, dA, dR, dD, dbias, dweight,
    HT, WT, E, N, blocks, bundle, count, diagonal, first_row, first, positions,
    dt_row, B_row, ddt_row, corner, point_i, point_j,
    CORRECTION: tl.constexpr, RANK: tl.constexpr, RANK_BLOCK: tl.constexpr, NEEDS_R: tl.constexpr,
    PASS_ON: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr, BE: tl.constexpr,
    N_BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Gradients of one direction of a 2d scan. Adds to dx; the other outputs belong to this direction alone.

    Points and rows of activations are those of triton_backward. Of every sample the kernel takes `count` tiles: all, or
    with PASS_ON those of one diagonal, from first_row on. Tiles are TH rows x TW columns, [tiles] of a sample
    are row by row.
    P_hor [B, tiles, N, TH, E], P_ver [B, rows of tiles, N, columns, E]: the carries into every tile and row of tiles.
    Q_ver [B, columns of tiles from the right, tiles from the bottom, N, TW, E], Q_hor [B, columns of tiles from
    the right, N, rows from the bottom, E]: the same of the adjoint states, Abar lam and Abar mu, as the sweep of the
    transposed grid from its end leaves them. With PASS_ON Q_hor [B, 2, rows of tiles, N, TH, E] and Q_ver [B, 2,
    columns of tiles, N, TW, E] are those out of the last diagonal and of this one, in turns.
    dBC [blocks, N + N + r, points]: partials of dB, dC and, of a low-rank dt, ddt, for each bundle.
    dA, dR [B, tiles, N, E], dD, dbias [B, tiles, E], dweight [B, tiles, r, E]: partials.
    """
    P: tl.constexpr = TH * TW
    program = tl.program_id(0)
    tiles_h = tl.cdiv(HT, TH)
    tiles_w = tl.cdiv(WT, TW)
    b = (program // (blocks * count)).to(tl.int64)
    tile = (program // blocks) % count
    if PASS_ON:
        tile_i = first_row + tile
        tile_j = diagonal - tile_i
    else:
        tile_i = tile // tiles_w
        tile_j = tile % tiles_w
    from_bottom = tiles_h - 1 - tile_i
    from_right = tiles_w - 1 - tile_j
    of_tile = (b * tiles_h + tile_i) * tiles_w + tile_j
    first_channel = program % blocks * (bundle * BE)
    end = tl.minimum(first_channel + bundle * BE, E)
    channel = tl.arange(0, BE)
    dstate = tl.arange(0, N_BLOCK)
    rank = tl.arange(0, RANK_BLOCK)
    row = tl.arange(0, TH)
    column = tl.arange(0, TW)

    # Scalar 64-bit steps to this tile, so that offsets inside it are short.
    point = b * (HT * WT) + corner + (tile_i * TH).to(tl.int64) * point_i + (tile_j * TW).to(tl.int64) * point_j
    x += point * E
    dy += point * E
    dx += point * E
    dt += point * dt_row
    ddt += point * ddt_row
    B += point * B_row
    C += point * B_row
    dBC += (program % blocks).to(tl.int64) * (2 * N + RANK) * positions + point
    P_hor += of_tile * N * TH * E
    P_ver += ((b * tiles_h + tile_i) * N * tiles_w + tile_j) * TW * E
    if PASS_ON:
        hor_out = Q_hor + ((2 * b + diagonal % 2) * tiles_h + tile_i) * N * TH * E
        ver_out = Q_ver + ((2 * b + diagonal % 2) * tiles_w + tile_j) * N * TW * E
        Q_hor += ((2 * b + (diagonal + 1) % 2) * tiles_h + tile_i) * N * TH * E
        Q_ver += ((2 * b + (diagonal + 1) % 2) * tiles_w + tile_j) * N * TW * E
        Q_hor_step = TH * E
    else:
        Q_hor += ((b * tiles_w + from_right) * N * tiles_h + from_bottom) * TH * E
        Q_ver += ((b * tiles_w + from_right) * tiles_h + from_bottom) * N * TW * E
        Q_hor_step = tiles_h * TH * E

    p = tl.arange(0, P)
    offset = p // TW * point_i + p % TW * point_j
    inside = (tile_i * TH + p // TW < HT) & (tile_j * TW + p % TW < WT)
    is_BC = inside[:, None] & (dstate[None, :] < N)
    BC_offset = (offset * B_row)[:, None] + dstate[None, :]
    B_pn = tl.load(B + BC_offset, mask=is_BC, other=0.0).to(tl.float32)
    C_pn = tl.load(C + BC_offset, mask=is_BC, other=0.0).to(tl.float32)
    dB_pn = tl.zeros([P, N_BLOCK], tl.float32)
    dC_pn = tl.zeros([P, N_BLOCK], tl.float32)
    if RANK > 0:
        low_offset = (offset * dt_row)[:, None] + rank[None, :]
        low = tl.load(dt + low_offset, mask=inside[:, None] & (rank[None, :] < RANK), other=0.0)
        low = low.to(tl.float32)
        dlow = tl.zeros([P, RANK_BLOCK], tl.float32)

    first_here = first_channel
    for _g in range(tl.cdiv(end - first_channel, BE)):
        here_channel = first_here + channel
        is_channel = tl.full([BE], 1, tl.int1) if EVEN else here_channel < E
        is_element = inside[:, None] & is_channel[None, :]
        if RANK > 0:
            # One factor at a time: as a matrix product, a thread would hold a whole row of both.
            raw = tl.zeros([P, BE], tl.float32)
            weight_re = load_parameters(weight, here_channel, is_channel, rank, RANK)
            for q in range(RANK):
                raw += pick_column(low, rank, q)[:, None] * pick(weight_re, rank, q)[None, :]
        else:
            raw_offset = (offset * dt_row)[:, None] + here_channel[None, :]
            raw = tl.load(dt + raw_offset, mask=is_element, other=0.0).to(tl.float32)
        bias_e = tl.load(bias + here_channel, mask=is_channel, other=0.0)
        x_offset = (offset * E)[:, None] + here_channel[None, :]
        delta = along_lanes(tl.where(is_element, softplus(raw + bias_e[None, :]), 0.0))
        x_tile = along_lanes(tl.load(x + x_offset, mask=is_element, other=0.0).to(tl.float32))
        dy_tile = along_lanes(tl.load(dy + x_offset, mask=is_element, other=0.0).to(tl.float32))
        hor_offset = row[:, None] * E + here_channel[None, :]
        ver_offset = column[:, None] * E + here_channel[None, :]
        has_left = only_if(is_channel[None, :], tile_j)
        has_above = only_if(is_channel[None, :], tile_i)
        has_right = only_if(is_channel[None, :], from_right)
        has_below = only_if(is_channel[None, :], from_bottom)
        du = tl.zeros([P, BE], tl.float32)
        dA_ne = tl.zeros([N_BLOCK, BE], tl.float32)
        dR_ne = tl.zeros([N_BLOCK, BE], tl.float32)
        ddelta = tl.zeros([P, BE], tl.float32)

        A_ne = load_parameters(A, here_channel, is_channel, dstate, N)
        R_ne = A_ne
        if CORRECTION > 0:
            R_ne = load_parameters(R, here_channel, is_channel, dstate, N)
        for s in range(N):
            A_e = pick(A_ne, dstate, s)
            R_e = A_e
            if CORRECTION > 0:
                R_e = pick(R_ne, dstate, s)
            B_p = pick_column(B_pn, dstate, s)
            C_p = pick_column(C_pn, dstate, s)
            hor = tl.load(P_hor + (hor_offset + s * TH * E), mask=has_left, other=0.0)
            ver = tl.load(P_ver + (ver_offset + s * tiles_w * TW * E), mask=has_above, other=0.0)
            back_hor = tl.load(Q_hor + (hor_offset + s * Q_hor_step), mask=has_right, other=0.0)
            back_ver = tl.load(Q_ver + (ver_offset + s * TW * E), mask=has_below, other=0.0)
            h, mu, through_a, up, left = scan_tile(
                delta, x_tile, dy_tile, A_e, B_p, C_p, hor, ver, back_hor, back_ver, TH, TW
            )
            if PASS_ON:
                up_offset = (TW - 1 - column)[:, None] * E + here_channel[None, :]
                tl.store(ver_out + (up_offset + s * TW * E), up, mask=has_above)
                left_offset = (TH - 1 - row)[:, None] * E + here_channel[None, :]
                tl.store(hor_out + (left_offset + s * TH * E), left, mask=has_left)
            bx = B_p[:, None] * delta * x_tile
            read, direct = correct(h, mu, bx, dy_tile, C_p, R_e, CORRECTION)
            du += B_p[:, None] * direct
            ddelta += A_e[None, :] * through_a
            dB_pn = add_to_column(dB_pn, dstate, s, tl.sum(x_tile * direct * delta, axis=1))
            dC_pn = add_to_column(dC_pn, dstate, s, tl.sum(dy_tile * read, axis=1))
            dA_ne = add_to_row(dA_ne, dstate, s, tl.sum(delta * through_a, axis=0))
            if NEEDS_R:
                dR_ne = add_to_row(dR_ne, dstate, s, correction_gradient(bx, dy_tile, C_p, CORRECTION))

        is_state = (dstate[:, None] < N) & is_channel[None, :]
        states = (of_tile * N + dstate[:, None]) * E + here_channel[None, :]
        tl.store(dA + states, dA_ne, mask=is_state)
        if NEEDS_R:
            tl.store(dR + states, dR_ne, mask=is_state)
        draw = write_gradients(
            dx, ddt, D, x_offset, (offset * ddt_row)[:, None] + here_channel[None, :], here_channel, is_channel,
            is_element, first, x_tile, dy_tile, delta, du, ddelta, RANK == 0,
        )  # fmt: skip
        tl.store(dD + of_tile * E + here_channel, tl.sum(x_tile * dy_tile, axis=0), mask=is_channel)
        tl.store(dbias + of_tile * E + here_channel, tl.sum(draw, axis=0), mask=is_channel)
        if RANK > 0:
            for q in range(RANK):
                dlow = add_to_column(dlow, rank, q, tl.sum(draw * pick(weight_re, rank, q)[None, :], axis=1))
                dweight_e = tl.sum(draw * pick_column(low, rank, q)[:, None], axis=0)
                tl.store(dweight + (of_tile * RANK + q) * E + here_channel, dweight_e, mask=is_channel)
        first_here += BE

    points = dBC + offset[:, None]
    tl.store(points + (dstate.to(tl.int64) * positions)[None, :], dB_pn, mask=is_BC)
    tl.store(points + ((N + dstate).to(tl.int64) * positions)[None, :], dC_pn, mask=is_BC)
    if RANK > 0:
        is_low = inside[:, None] & (rank[None, :] < RANK)
        tl.store(points + ((2 * N + rank).to(tl.int64) * positions)[None, :], dlow, mask=is_low)
