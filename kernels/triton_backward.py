"""The adjoint of the 1d scan as a Triton kernel, for one scan direction; triton_backward_grid is that of the 2d scan.

One program takes one sample, one chunk of the sequence and a block of channels, and walks the tiles from the last to
the first. In a tile the states are recomputed from the state into it, then the adjoint states run against the order:

    1d  lam[t] = C[t] dy[t] + Abar[t+1] lam[t+1]
    2d  lam[i,j] = C[i,j] dy[i,j] + Abar[i+1,j] lam[i+1,j],   mu[i,j] = lam[i,j] + Abar[i,j+1] mu[i,j+1]

where lam belongs to h, mu to g (1d: mu = lam). With Bx = B delta x, and the correction R Bx taken from y
("equation") or from h ("state", which puts a factor C before R below):

    d(delta x) = sum_s B (mu - R dy)              dB = sum_e delta x (mu - R dy)
    d(delta)   = d(delta x) x + sum_s A (lam Abar h[before] + mu Abar g[before])
    dA = sum_t delta (lam Abar h[before] + mu Abar g[before])
    dC = sum_e dy h                               dR = -sum_t Bx dy

No sum crosses programs: what is summed over channels leaves one partial per channel block, what is summed over
positions one per sample and chunk (2d: tile), and torch adds them in a fixed order. So two runs are bit-equal.
"""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton_tiles import (
    LOG2E,
    add_to_row,
    along_lanes,
    backwards,
    compose,
    compose_with_past,
    load_parameters,
    load_time_step,
    neighbour_backwards,
    only_if,
    pick,
    softplus_slope,
    tile_positions,
)


@triton.jit(do_not_specialize=["first", "chunks", "per_chunk", "point_i", "point_j"])
def backward_kernel(
    x, dt, A, B, C, D, R, bias, weight, dy, kept, entries, dx, ddt, dBC, dA, dR, dD, dbias, dweight,
    HT, WT, E, N, blocks, chunks, per_chunk, first, positions,
    x_b, x_i, x_j, dt_b, dt_i, dt_j, B_b, B_i, B_j, dy_b, dy_i, dy_j, dx_b, dx_i, dx_j,
    ddt_b, ddt_i, ddt_j, point_b, point_i, point_j,
    CORRECTION: tl.constexpr, RANK: tl.constexpr, RANK_BLOCK: tl.constexpr, NEEDS_R: tl.constexpr, ENTRY: tl.constexpr,
    TH: tl.constexpr, TW: tl.constexpr, BE: tl.constexpr, N_BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Gradients of one direction of a 1d scan. Adds to dx; the other outputs belong to this direction alone.

    kept [B, tiles, N, E]: the states into every tile. With ENTRY entries [B, chunks, N, E]: Abar lam at the start of
    the chunk behind, last chunk first.
    dBC [blocks, N + N + r, points]: partials of dB, dC and, of a low-rank dt, ddt; a point is b H W + i W + j.
    dA, dR [B, chunks, N, E], dD, dbias [B, chunks, E], dweight [B, chunks, r, E]: partials.
    """
    P: tl.constexpr = TH * TW
    program = tl.program_id(0)
    block = (program % blocks).to(tl.int64)
    chunk = (program // blocks) % chunks
    b = (program // (blocks * chunks)).to(tl.int64)
    first_channel = block * BE
    positions += 0 * b  # 64-bit from here on: N times the points of a large batch exceeds 32
    channel = tl.arange(0, BE)
    is_channel = tl.full([BE], 1, tl.int1) if EVEN else first_channel + channel < E
    dstate = tl.arange(0, N_BLOCK)
    p = tl.arange(0, P)
    tiles = tl.cdiv(HT * WT, P)

    # Scalar 64-bit steps to this sample and block, so that offsets inside a block are short.
    x += b * x_b + first_channel
    dt += b * dt_b
    B += b * B_b
    C += b * B_b
    dy += b * dy_b + first_channel
    dx += b * dx_b + first_channel
    if RANK == 0:
        dt += first_channel
        ddt += b * ddt_b + first_channel
    bias += first_channel
    D += first_channel
    dBC += block * (2 * N + RANK) * positions + b * point_b

    A_ne = load_parameters(A + first_channel * N, channel, is_channel, dstate, N)
    R_ne = A_ne
    if CORRECTION > 0:
        R_ne = load_parameters(R + first_channel * N, channel, is_channel, dstate, N)
    weight_re = 0.0
    rank = tl.arange(0, RANK_BLOCK)
    if RANK > 0:
        weight_re = load_parameters(weight + first_channel * RANK, channel, is_channel, rank, RANK)
        dweight_re = tl.zeros([RANK_BLOCK, BE], tl.float32)
    # Two tables on chip. A warp has 32 lanes or more and N is mostly 16, so a table's second half costs no registers:
    # sums holds dA, dR; flow holds the adjoint states between tiles, dD, dbias.
    tl.static_assert(N_BLOCK >= 2)
    row_of_table = tl.arange(0, 2 * N_BLOCK)
    sums = tl.zeros([2 * N_BLOCK, BE], tl.float32)
    flow = tl.zeros([2 * N_BLOCK, BE], tl.float32)
    if ENTRY:
        entry = entries + ((b * chunks + chunks - 1 - chunk) * N * E + first_channel)
        is_state = (row_of_table[:, None] < N) & is_channel[None, :]
        flow = tl.load(entry + row_of_table[:, None] * E + channel[None, :], mask=is_state, other=0.0)

    here = tl.minimum(per_chunk, tiles - chunk * per_chunk)
    for walked in range(here):
        tile = chunk * per_chunk + here - 1 - walked
        i0, j0, i, j, inside = tile_positions(tile, 0, 0, 0, HT, WT, False, TH, TW)
        is_element = inside[:, None] & is_channel[None, :]
        bias_e = tl.load(bias + channel, mask=is_channel, other=0.0)
        delta, low = load_time_step(
            dt + (i0 * dt_i + j0 * dt_j), i * dt_i + j * dt_j, inside, channel, is_channel, bias_e, weight_re,
            RANK, RANK_BLOCK,
        )  # fmt: skip
        x_pointer = x + (i0 * x_i + j0 * x_j) + (i * x_i + j * x_j)[:, None] + channel[None, :]
        dy_pointer = dy + (i0 * dy_i + j0 * dy_j) + (i * dy_i + j * dy_j)[:, None] + channel[None, :]
        delta = along_lanes(delta)
        x_tile = along_lanes(tl.load(x_pointer, mask=is_element, other=0.0).to(tl.float32))
        dy_tile = along_lanes(tl.load(dy_pointer, mask=is_element, other=0.0).to(tl.float32))
        u = delta * x_tile
        B_tile = B + (i0 * B_i + j0 * B_j)
        C_tile = C + (i0 * B_i + j0 * B_j)
        B_offset = i * B_i + j * B_j
        points = dBC + (i0 * point_i + j0 * point_j)
        point = i * point_i + j * point_j
        kept_tile = kept + ((b * tiles + tile) * N * E + first_channel)
        du = tl.zeros([P, BE], tl.float32)
        ddelta = tl.zeros([P, BE], tl.float32)

        for s in range(N):
            A_e = pick(A_ne, dstate, s)
            B_p = tl.load(B_tile + (B_offset + s), mask=inside, other=0.0).to(tl.float32)
            C_p = tl.load(C_tile + (B_offset + s), mask=inside, other=0.0).to(tl.float32)
            a = tl.exp2(delta * (A_e * LOG2E)[None, :])
            # The adjoint states first, then the states: fewer of them are alive at a time. A carry joins the first
            # position, so that products of Abar along the tile need not outlive a scan.
            q_back = backwards(C_p[:, None] * dy_tile)
            q_back += tl.where(p[:, None] == 0, pick(flow, row_of_table, s)[None, :], 0.0)
            _product, lam_back = tl.associative_scan((neighbour_backwards(a, 1, p > 0), q_back), 0, compose)
            lam = backwards(lam_back)
            start = tl.sum(tl.where(p[:, None] == 0, a * lam, 0.0), axis=0)
            flow = tl.where(row_of_table[:, None] == s, start[None, :], flow)

            bx = B_p[:, None] * u
            carry = tl.load(kept_tile + (channel + s * E), mask=is_channel, other=0.0)
            before = tl.where(p[:, None] == 0, a * carry[None, :], 0.0)
            _product, h, past_h = tl.associative_scan((a, bx + before, before), 0, compose_with_past)
            through_a = lam * past_h

            read = h
            direct = lam
            if CORRECTION == 1:
                direct = lam - pick(R_ne, dstate, s)[None, :] * dy_tile
            elif CORRECTION == 2:
                R_e = pick(R_ne, dstate, s)
                direct = lam - C_p[:, None] * R_e[None, :] * dy_tile
                read = h - R_e[None, :] * bx
            du += B_p[:, None] * direct
            ddelta += A_e[None, :] * through_a
            tl.store(points + s * positions + point, tl.sum(u * direct, axis=1), mask=inside)
            tl.store(points + (N + s) * positions + point, tl.sum(dy_tile * read, axis=1), mask=inside)
            sums = add_to_row(sums, row_of_table, s, tl.sum(delta * through_a, axis=0))
            if NEEDS_R:
                corrected = bx * dy_tile
                if CORRECTION == 2:
                    corrected *= C_p[:, None]
                sums = add_to_row(sums, row_of_table, N_BLOCK + s, -tl.sum(corrected, axis=0))

        dx_pointer = dx + (i0 * dx_i + j0 * dx_j) + (i * dx_i + j * dx_j)[:, None] + channel[None, :]
        skip_e = tl.load(D + channel, mask=is_channel, other=0.0)
        before = tl.load(dx_pointer, mask=only_if(is_element, 1 - first), other=0.0)
        tl.store(dx_pointer, before + du * delta + skip_e[None, :] * dy_tile, mask=is_element)
        draw = (ddelta + du * x_tile) * softplus_slope(delta)
        flow = add_to_row(flow, row_of_table, N_BLOCK, tl.sum(x_tile * dy_tile, axis=0))
        flow = add_to_row(flow, row_of_table, N_BLOCK + 1, tl.sum(draw, axis=0))
        if RANK > 0:
            dlow = tl.dot(draw, tl.trans(weight_re), input_precision="ieee")
            rank_row = (2 * N + rank)[None, :] * positions
            tl.store(points + point[:, None] + rank_row, dlow, mask=inside[:, None] & (rank[None, :] < RANK))
            dweight_re += tl.dot(tl.trans(low), draw, input_precision="ieee")
        else:
            ddt_pointer = ddt + (i0 * ddt_i + j0 * ddt_j) + (i * ddt_i + j * ddt_j)[:, None] + channel[None, :]
            tl.store(ddt_pointer, draw, mask=is_element)

    part = b * chunks + chunk
    row = row_of_table[:, None]
    is_row = is_channel[None, :]
    tl.store(dA + (part * N + row) * E + first_channel + channel[None, :], sums, mask=(row < N) & is_row)
    if NEEDS_R:
        is_R = (row >= N_BLOCK) & (row < N_BLOCK + N)
        tl.store(dR + (part * N + row - N_BLOCK) * E + first_channel + channel[None, :], sums, mask=is_R & is_row)
    tl.store(dD + 0 * row + part * E + first_channel + channel[None, :], flow, mask=(row == N_BLOCK) & is_row)
    tl.store(dbias + 0 * row + part * E + first_channel + channel[None, :], flow, mask=(row == N_BLOCK + 1) & is_row)
    if RANK > 0:
        dweight_pointer = dweight + (part * RANK + rank[:, None]) * E + first_channel + channel[None, :]
        tl.store(dweight_pointer, dweight_re, mask=(rank[:, None] < RANK) & is_row)
