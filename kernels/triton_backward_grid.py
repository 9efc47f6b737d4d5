"""The adjoint of the 2d scan as a Triton kernel, for one scan direction. The equations are in triton_backward.

Two sweeps of the forward kernel have left the carries into every tile: P_hor and P_ver of the states, Q_hor and Q_ver
of the adjoint states. So tiles do not wait for each other: one program takes one tile and a bundle of channel blocks.
It loads B, C and a low-rank dt of the tile once, takes one block after the other through it and sums their dB, dC and
ddt on chip. A loop over tiles would keep sums over positions in registers too, which larger tiles need; and a tile
twice as large has half the carries.
"""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton_tiles import (
    LOG2E,
    add_to_column,
    add_to_row,
    along_lanes,
    backwards,
    compose,
    compose_with_past,
    neighbour_backwards,
    only_if,
    pick,
    pick_column,
    softplus,
    softplus_slope,
)


@triton.jit(do_not_specialize=["first", "bundle", "state_rows", "adjoint_rows", "corner", "point_i", "point_j"])
def grid_backward_kernel(
    x, dt, A, B, C, D, R, bias, weight, dy, P_hor, P_ver, Q_hor, Q_ver,
    dx, ddt, dBC, dA, dR, dD, dbias, dweight,
    HT, WT, E, N, blocks, bundle, state_rows, adjoint_rows, first, positions,
    dt_row, B_row, ddt_row, corner, point_i, point_j,
    CORRECTION: tl.constexpr, RANK: tl.constexpr, RANK_BLOCK: tl.constexpr, NEEDS_R: tl.constexpr,
    TH: tl.constexpr, TW: tl.constexpr, BE: tl.constexpr, N_BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Gradients of one direction of a 2d scan. Adds to dx; the other outputs belong to this direction alone.

    Points and rows of activations are those of triton_backward.
    P_hor [B, state_rows, tiles of a row, N, TH, E], P_ver [B, state_rows, N, columns, E]: the carries into every tile
    and row of tiles. Q_ver [B, adjoint_rows, tiles of a column, N, TW, E], Q_hor [B, adjoint_rows, N, rows, E]: the
    same of the adjoint states Abar lam and Abar mu, as the sweep of the transposed grid from its end leaves them.
    dBC [blocks, N + N + r, points]: partials of dB, dC and, of a low-rank dt, ddt, for each bundle.
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
    first_channel = program % blocks * (bundle * BE)
    end = tl.minimum(first_channel + bundle * BE, E)
    channel = tl.arange(0, BE)
    dstate = tl.arange(0, N_BLOCK)
    p = tl.arange(0, P)
    row = tl.arange(0, TH)
    column = tl.arange(0, TW)
    rank = tl.arange(0, RANK_BLOCK)

    i, j = tile_i * TH + p // TW, tile_j * TW + p % TW
    inside = (i < HT) & (j < WT)
    point = b * (HT * WT) + corner + i * point_i + j * point_j
    dBC += block * (2 * N + RANK) * positions
    dA += part * N * E
    dR += part * N * E
    # The adjoint sweep counts rows of tiles from the right, and the tiles in them from the bottom.
    from_right = adjoint_rows - 1 - tile_j
    from_bottom = tiles_h - 1 - tile_i
    P_hor += ((b * state_rows + tile_i) * tiles_w + tile_j) * N * TH * E
    P_ver += ((b * state_rows + tile_i) * N * tiles_w + tile_j) * TW * E
    Q_ver += ((b * adjoint_rows + from_right) * tiles_h + from_bottom) * N * TW * E
    Q_hor += ((b * adjoint_rows + from_right) * N * tiles_h + from_bottom) * TH * E

    is_BC = inside[:, None] & (dstate[None, :] < N)
    BC_offset = (point * B_row)[:, None] + dstate[None, :]
    B_pn = tl.load(B + BC_offset, mask=is_BC, other=0.0).to(tl.float32)
    C_pn = tl.load(C + BC_offset, mask=is_BC, other=0.0).to(tl.float32)
    dB_pn = tl.zeros([P, N_BLOCK], tl.float32)
    dC_pn = tl.zeros([P, N_BLOCK], tl.float32)
    is_low = inside[:, None] & (rank[None, :] < RANK)
    if RANK > 0:
        low = tl.load(dt + (point * dt_row)[:, None] + rank[None, :], mask=is_low, other=0.0).to(tl.float32)
        dlow = tl.zeros([P, RANK_BLOCK], tl.float32)

    first_here = first_channel
    for _g in range(tl.cdiv(end - first_channel, BE)):
        here_channel = first_here + channel
        is_channel = tl.full([BE], 1, tl.int1) if EVEN else here_channel < E
        is_element = inside[:, None] & is_channel[None, :]
        if RANK > 0:
            # One factor at a time: as a matrix product, a thread would hold a whole row of both.
            raw = tl.zeros([P, BE], tl.float32)
            for q in range(RANK):
                weight_e = tl.load(weight + (here_channel * RANK + q), mask=is_channel, other=0.0)
                raw += pick_column(low, rank, q)[:, None] * weight_e[None, :]
        else:
            raw_pointer = dt + (point * dt_row)[:, None] + here_channel[None, :]
            raw = tl.load(raw_pointer, mask=is_element, other=0.0).to(tl.float32)
        bias_e = tl.load(bias + here_channel, mask=is_channel, other=0.0)
        delta = along_lanes(tl.where(is_element, softplus(raw + bias_e[None, :]), 0.0))
        offset = (point * E)[:, None] + here_channel[None, :]
        x_tile = along_lanes(tl.load(x + offset, mask=is_element, other=0.0).to(tl.float32))
        dy_tile = along_lanes(tl.load(dy + offset, mask=is_element, other=0.0).to(tl.float32))
        hor_offset = row[:, None] * E + here_channel[None, :]
        ver_offset = column[:, None] * E + here_channel[None, :]
        has_left = only_if(is_channel[None, :], tile_j)
        has_above = only_if(is_channel[None, :], tile_i)
        has_right = only_if(is_channel[None, :], tiles_w - 1 - tile_j)
        has_below = only_if(is_channel[None, :], from_bottom)
        is_state = (dstate[:, None] < N) & is_channel[None, :]
        A_ne = tl.load(A + here_channel[None, :] * N + dstate[:, None], mask=is_state, other=0.0)
        R_ne = A_ne
        if CORRECTION > 0:
            R_ne = tl.load(R + here_channel[None, :] * N + dstate[:, None], mask=is_state, other=0.0)
        dA_ne = tl.zeros([N_BLOCK, BE], tl.float32)
        dR_ne = tl.zeros([N_BLOCK, BE], tl.float32)
        du = tl.zeros([P, BE], tl.float32)
        ddelta = tl.zeros([P, BE], tl.float32)

        for s in range(N):
            A_e = pick(A_ne, dstate, s)
            B_p = pick_column(B_pn, dstate, s)
            C_p = pick_column(C_pn, dstate, s)
            a = tl.exp2(delta * (A_e * LOG2E)[None, :])
            # The adjoint states first, then the states: fewer of them are alive at a time. A carry joins the first row
            # or column, so that products of Abar along the tile need not outlive a scan.
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
                R_e = pick(R_ne, dstate, s)
                if CORRECTION == 1:
                    direct = mu - R_e[None, :] * dy_tile
                else:
                    direct = mu - C_p[:, None] * R_e[None, :] * dy_tile
                    read = h - R_e[None, :] * bx
            du += B_p[:, None] * direct
            ddelta += A_e[None, :] * through_a
            dB_pn = add_to_column(dB_pn, dstate, s, tl.sum(delta * x_tile * direct, axis=1))
            dC_pn = add_to_column(dC_pn, dstate, s, tl.sum(dy_tile * read, axis=1))
            dA_ne = add_to_row(dA_ne, dstate, s, tl.sum(delta * through_a, axis=0))
            if NEEDS_R:
                corrected = bx * dy_tile
                if CORRECTION == 2:
                    corrected *= C_p[:, None]
                dR_ne = add_to_row(dR_ne, dstate, s, -tl.sum(corrected, axis=0))

        tl.store(dA + dstate[:, None] * E + here_channel[None, :], dA_ne, mask=is_state)
        if NEEDS_R:
            tl.store(dR + dstate[:, None] * E + here_channel[None, :], dR_ne, mask=is_state)
        skip_e = tl.load(D + here_channel, mask=is_channel, other=0.0)
        before = tl.load(dx + offset, mask=only_if(is_element, 1 - first), other=0.0)
        tl.store(dx + offset, before + du * delta + skip_e[None, :] * dy_tile, mask=is_element)
        draw = (ddelta + du * x_tile) * softplus_slope(delta)
        tl.store(dD + part * E + here_channel, tl.sum(x_tile * dy_tile, axis=0), mask=is_channel)
        tl.store(dbias + part * E + here_channel, tl.sum(draw, axis=0), mask=is_channel)
        if RANK > 0:
            for q in range(RANK):
                weight_e = tl.load(weight + (here_channel * RANK + q), mask=is_channel, other=0.0)
                dlow = add_to_column(dlow, rank, q, tl.sum(draw * weight_e[None, :], axis=1))
                dweight_e = tl.sum(draw * pick_column(low, rank, q)[:, None], axis=0)
                tl.store(dweight + (part * RANK + q) * E + here_channel, dweight_e, mask=is_channel)
        else:
            tl.store(ddt + (point * ddt_row)[:, None] + here_channel[None, :], draw, mask=is_element)
        first_here += BE

    points = dBC + point[:, None]
    tl.store(points + (dstate.to(tl.int64) * positions)[None, :], dB_pn, mask=is_BC)
    tl.store(points + ((N + dstate).to(tl.int64) * positions)[None, :], dC_pn, mask=is_BC)
    if RANK > 0:
        tl.store(points + ((2 * N + rank).to(tl.int64) * positions)[None, :], dlow, mask=is_low)
