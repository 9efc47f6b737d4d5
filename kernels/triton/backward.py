"""The adjoint of the 1d scan as a Triton kernel, for one scan direction; triton_backward_grid is that of the 2d scan.

One program takes one sample, one chunk of the sequence and a bundle of channel blocks, and walks the tiles from the
last to the first. It loads B, C and a low-rank dt of a tile once, takes one block of channels after the other through
it, and sums their dB, dC and ddt on chip. In a tile the states are recomputed from the state into it, then the adjoint
states run against the order:

    1d  lam[t] = C[t] dy[t] + Abar[t+1] lam[t+1]
    2d  lam[i,j] = C[i,j] dy[i,j] + Abar[i+1,j] lam[i+1,j],   mu[i,j] = lam[i,j] + Abar[i,j+1] mu[i,j+1]

where lam belongs to h, mu to g (1d: mu = lam). With Bx = B delta x, and the correction R Bx taken from y
("equation") or from h ("state", which puts a factor C before R below):

    d(delta x) = sum_s B (mu - R dy)              dB = sum_e delta x (mu - R dy)
    d(delta)   = d(delta x) x + sum_s A (lam Abar h[before] + mu Abar g[before])
    dA = sum_t delta (lam Abar h[before] + mu Abar g[before])
    dC = sum_e dy h                               dR = -sum_t Bx dy

No sum crosses programs: what is summed over channels leaves one partial per bundle, what is summed over positions one
per sample and chunk (2d: tile), and torch adds them in a fixed order. So two runs are bit-equal.
"""
# mypy: disable-error-code="no-untyped-def,assignment"
# ruff: noqa: RUF005
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own, and a tuple grows by addition.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.bundle import add_to_block, load_tables, pick_block, put_block, zero_tables
from geomano_hpc.kernels.triton.gradients import correct, correction_gradient, write_gradients
from geomano_hpc.kernels.triton.tiles import (
    LOG2E,
    add_to_row,
    along_lanes,
    backwards,
    compose,
    compose_with_past,
    neighbour_backwards,
    pick,
    softplus,
)


@triton.jit(do_not_specialize=["first", "bundle", "chunks", "per_chunk", "corner", "point_i", "point_j"])
def backward_kernel(
    x, dt, A, B, C, D, R, bias, weight, dy, kept, entries, dx, ddt, dBC, dA, dR, dD, dbias, dweight,
    HT, WT, E, N, blocks, bundle, chunks, per_chunk, first, positions,
    dt_row, B_row, ddt_row, corner, point_i, point_j,
    CORRECTION: tl.constexpr, RANK: tl.constexpr, NEEDS_R: tl.constexpr, ENTRY: tl.constexpr,
    P: tl.constexpr, BE: tl.constexpr, QUADS: tl.constexpr, N_BLOCK: tl.constexpr, RANK_PIECES: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """Gradients of one direction of a 1d scan. Adds to dx; the other outputs belong to this direction alone.

    A point is b H W + i W + j; the traversal starts at `corner` and steps by point_i and point_j. The rows of x, dy and
    dx are points and contiguous; those of dt, of B and C and of ddt are *_row elements apart.
    kept [B, tiles, N, E]: the states into every tile. With ENTRY entries [B, chunks, N, E]: Abar lam at the start of
    the chunk behind, last chunk first.
    dBC [blocks, N + N + r, points]: partials of dB, dC and, of a low-rank dt, ddt, for each bundle.
    dA, dR [B, chunks, N, E], dD, dbias [B, chunks, E], dweight [B, chunks, r, E]: partials.
    """
    program = tl.program_id(0)
    chunk = (program // blocks) % chunks
    part = (program // blocks).to(tl.int64)
    b = program // (blocks * chunks)
    first_channel = program % blocks * (bundle * BE)
    end = tl.minimum(first_channel + bundle * BE, E)
    channel = tl.arange(0, BE)
    dstate = tl.arange(0, N_BLOCK)
    rank = tl.arange(0, 16)
    p = tl.arange(0, P)
    tiles = tl.cdiv(HT * WT, P)
    dBC += (program % blocks).to(tl.int64) * (2 * N + RANK) * positions

    # On chip, of every block of the bundle: A, R, their gradients, the adjoint states between tiles, and the weights of
    # the time step with their gradient, in pieces of sixteen ranks: in a matrix product a thread holds whole rows.
    A_tables = load_tables(A, first_channel, end, N, 1, N, QUADS, N_BLOCK, BE)
    R_tables = A_tables
    if CORRECTION > 0:
        R_tables = load_tables(R, first_channel, end, N, 1, N, QUADS, N_BLOCK, BE)
    weights = ()
    dweights = ()
    for q in tl.static_range(RANK_PIECES):
        piece = load_tables(weight + 16 * q, first_channel, end, RANK - 16 * q, 1, RANK, QUADS, 16, BE)
        weights = weights + (piece,)
        dweights = dweights + (zero_tables(QUADS, 16, BE),)
    dA_tables = zero_tables(QUADS, N_BLOCK, BE)
    dR_tables = zero_tables(QUADS, N_BLOCK, BE)
    flow = zero_tables(QUADS, N_BLOCK, BE)
    if ENTRY:
        entry = entries + (part - chunk + chunks - 1 - chunk) * N * E
        flow = load_tables(entry, first_channel, end, N, E, 1, QUADS, N_BLOCK, BE)
    # A row for each block: dD in the first half, dbias in the second.
    tl.static_assert(QUADS <= 4)
    D_row = tl.arange(0, 32)
    dD_and_dbias = tl.zeros([32, BE], tl.float32)

    here = tl.minimum(per_chunk, tiles - chunk * per_chunk)
    for walked in range(here):
        tile = chunk * per_chunk + here - 1 - walked
        t = tile * P + p
        inside = t < HT * WT
        point = (b * (HT * WT) + corner + t // WT * point_i + t % WT * point_j).to(tl.int64)
        is_BC = inside[:, None] & (dstate[None, :] < N)
        BC_offset = (point * B_row)[:, None] + dstate[None, :]
        B_pn = tl.load(B + BC_offset, mask=is_BC, other=0.0).to(tl.float32)
        C_pn = tl.load(C + BC_offset, mask=is_BC, other=0.0).to(tl.float32)
        BC_pn2 = tl.join(B_pn, C_pn)
        dBC_pn2 = tl.zeros([P, N_BLOCK, 2], tl.float32)
        lows = ()
        dlows = ()
        for q in tl.static_range(RANK_PIECES):
            is_low = inside[:, None] & (16 * q + rank[None, :] < RANK)
            low_offset = (point * dt_row)[:, None] + (16 * q + rank)[None, :]
            lows = lows + (tl.load(dt + low_offset, mask=is_low, other=0.0).to(tl.float32),)
            dlows = dlows + (tl.zeros([P, 16], tl.float32),)
        kept_tile = kept + (b.to(tl.int64) * tiles + tile) * N * E

        # The channel is carried, not computed from g: else the compiler counts g, and compares it, in 64 bits.
        first_here = first_channel
        for g in range(tl.cdiv(end - first_channel, BE)):
            here_channel = first_here + channel
            is_channel = tl.full([BE], 1, tl.int1) if EVEN else here_channel < E
            is_element = inside[:, None] & is_channel[None, :]
            offset = (point * E)[:, None] + here_channel[None, :]
            # Line 7 of Algorithm 2. The product of the factors exists only here: Linear(dt_low) is never in memory.
            if RANK > 0:
                raw = tl.zeros([P, BE], tl.float32)
                for q in tl.static_range(RANK_PIECES):
                    raw = tl.dot(lows[q], pick_block(weights[q], g, QUADS), raw, input_precision="ieee")
            else:
                raw_offset = (point * dt_row)[:, None] + here_channel[None, :]
                raw = tl.load(dt + raw_offset, mask=is_element, other=0.0).to(tl.float32)
            bias_e = tl.load(bias + here_channel, mask=is_channel, other=0.0)
            delta = along_lanes(tl.where(is_element, softplus(raw + bias_e[None, :]), 0.0))
            x_tile = along_lanes(tl.load(x + offset, mask=is_element, other=0.0).to(tl.float32))
            dy_tile = along_lanes(tl.load(dy + offset, mask=is_element, other=0.0).to(tl.float32))
            u = delta * x_tile
            A_ne = along_lanes(pick_block(A_tables, g, QUADS))
            R_ne = A_ne
            if CORRECTION > 0:
                R_ne = along_lanes(pick_block(R_tables, g, QUADS))
            flow_ne = pick_block(flow, g, QUADS)
            kept_e = kept_tile + here_channel
            du = tl.zeros([P, BE], tl.float32)
            ddelta = tl.zeros([P, BE], tl.float32)
            dA_ne = tl.zeros([N_BLOCK, BE], tl.float32)
            dR_ne = tl.zeros([N_BLOCK, BE], tl.float32)

            for s in range(N):
                A_e = pick(A_ne, dstate, s)
                B_p, C_p = tl.split(tl.sum(tl.where(dstate[None, :, None] == s, BC_pn2, 0.0), axis=1))
                a = tl.exp2(delta * (A_e * LOG2E)[None, :])
                # The adjoint states first, then the states: fewer of them are alive at a time. A carry joins the first
                # position, so that products of Abar along the tile need not outlive a scan.
                q_back = backwards(C_p[:, None] * dy_tile)
                q_back += tl.where(p[:, None] == 0, pick(flow_ne, dstate, s)[None, :], 0.0)
                _product, lam_back = tl.associative_scan((neighbour_backwards(a, 1, p > 0), q_back), 0, compose)
                lam = backwards(lam_back)
                start = tl.sum(tl.where(p[:, None] == 0, a * lam, 0.0), axis=0)
                flow_ne = tl.where(dstate[:, None] == s, start[None, :], flow_ne)

                bx = B_p[:, None] * u
                carry = tl.load(kept_e, mask=is_channel, other=0.0)
                kept_e += E
                before = tl.where(p[:, None] == 0, a * carry[None, :], 0.0)
                _product, h, past_h = tl.associative_scan((a, bx + before, before), 0, compose_with_past)
                through_a = lam * past_h

                R_e = A_e
                if CORRECTION > 0:
                    R_e = pick(R_ne, dstate, s)
                read, direct = correct(h, lam, bx, dy_tile, C_p, R_e, CORRECTION)
                du += B_p[:, None] * direct
                ddelta += A_e[None, :] * through_a
                dBC_p2 = tl.sum(tl.join(u * direct, dy_tile * read), axis=1)
                dBC_pn2 = tl.where(dstate[None, :, None] == s, dBC_pn2 + dBC_p2[:, None, :], dBC_pn2)
                dA_ne = add_to_row(dA_ne, dstate, s, tl.sum(delta * through_a, axis=0))
                if NEEDS_R:
                    dR_ne = add_to_row(dR_ne, dstate, s, correction_gradient(bx, dy_tile, C_p, CORRECTION))

            flow = put_block(flow, g, flow_ne, QUADS)
            dA_tables = add_to_block(dA_tables, g, dA_ne, QUADS)
            if NEEDS_R:
                dR_tables = add_to_block(dR_tables, g, dR_ne, QUADS)
            draw = write_gradients(
                dx, ddt, D, offset, (point * ddt_row)[:, None] + here_channel[None, :], here_channel, is_channel,
                is_element, first, x_tile, dy_tile, delta, du, ddelta, RANK == 0,
            )  # fmt: skip
            dD_and_dbias = add_to_row(dD_and_dbias, D_row, g, tl.sum(x_tile * dy_tile, axis=0))
            dD_and_dbias = add_to_row(dD_and_dbias, D_row, 16 + g, tl.sum(draw, axis=0))
            if RANK > 0:
                dlows_before = dlows
                dweights_before = dweights
                dlows = ()
                dweights = ()
                for q in tl.static_range(RANK_PIECES):
                    weight_er = tl.trans(pick_block(weights[q], g, QUADS))
                    dlows = dlows + (tl.dot(draw, weight_er, dlows_before[q], input_precision="ieee"),)
                    dweight_re = tl.dot(tl.trans(lows[q]), draw, input_precision="ieee")
                    dweights = dweights + (add_to_block(dweights_before[q], g, dweight_re, QUADS),)
            first_here += BE

        dB_pn, dC_pn = tl.split(dBC_pn2)
        points = dBC + point[:, None]
        tl.store(points + (dstate.to(tl.int64) * positions)[None, :], dB_pn, mask=is_BC)
        tl.store(points + ((N + dstate).to(tl.int64) * positions)[None, :], dC_pn, mask=is_BC)
        for q in tl.static_range(RANK_PIECES):
            is_low = inside[:, None] & (16 * q + rank[None, :] < RANK)
            tl.store(points + ((2 * N + 16 * q + rank).to(tl.int64) * positions)[None, :], dlows[q], mask=is_low)

    for g in range(tl.cdiv(end - first_channel, BE)):
        of_channel = (first_channel + g * BE + channel)[None, :]
        is_state = (dstate[:, None] < N) & (of_channel < E)
        tl.store(dA + (part * N + dstate[:, None]) * E + of_channel, pick_block(dA_tables, g, QUADS), mask=is_state)
        if NEEDS_R:
            tl.store(dR + (part * N + dstate[:, None]) * E + of_channel, pick_block(dR_tables, g, QUADS), mask=is_state)
        here_channel = first_channel + g * BE + channel
        tl.store(dD + part * E + here_channel, pick(dD_and_dbias, D_row, g), mask=here_channel < E)
        tl.store(dbias + part * E + here_channel, pick(dD_and_dbias, D_row, 16 + g), mask=here_channel < E)
        for q in tl.static_range(RANK_PIECES):
            row = 16 * q + rank[:, None]
            dweight_pointer = dweight + (part * RANK + row) * E + of_channel
            tl.store(dweight_pointer, pick_block(dweights[q], g, QUADS), mask=(row < RANK) & (of_channel < E))
