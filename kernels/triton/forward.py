"""Algorithm 2 of the paper as a Triton kernel, for one scan direction.

One program takes one sample, one chunk of the traversal (1d: a run of tiles, 2d: a strip of rows of tiles; mostly
all of them) and a block of BE channels, and walks the tiles in scan order. Tiles are those of triton_tiles.

The same kernel sweeps the adjoint states. With nu = Abar lam and eta = Abar mu (see triton_backward) they obey

    nu[i,j] = Abar[i,j] nu[i+1,j] + Abar[i,j] C[i,j] dy[i,j],   eta[i,j] = Abar[i,j] eta[i,j+1] + nu[i,j]

which is Algorithm 2 on the transposed grid, from the last point to the first, with Abar C dy for the input.
"""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.tiles import (
    LOG2E,
    along_lanes,
    compose,
    load_parameters,
    load_time_step,
    only_if,
    pick,
    tile_positions,
)


@triton.jit(do_not_specialize=["first", "chunks", "per_chunk", "lead_i", "lead_j"])
def forward_kernel(
    x, dt, A, B, C, D, R, bias, weight, y, kept, P_hor, P_ver, span,
    HT, WT, E, N, blocks, chunks, per_chunk, lead_i, lead_j, first,
    x_b, x_i, x_j, dt_b, dt_i, dt_j, B_b, B_i, B_j,
    TWO_D: tl.constexpr, CORRECTION: tl.constexpr, RANK: tl.constexpr, RANK_BLOCK: tl.constexpr,
    OUTPUT: tl.constexpr, KEEP: tl.constexpr, ADJOINT: tl.constexpr, ENTRY: tl.constexpr, ENDS: tl.constexpr,
    EVERY: tl.constexpr,
    TH: tl.constexpr, TW: tl.constexpr, BE: tl.constexpr, N_BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Algorithm 2. OUTPUT: add this direction's y to what is there. KEEP: leave the carries for a backward.
    ADJOINT: sweep the adjoint states; x is dy, B is C. ENTRY: a chunk starts from a state that it is given, not from 0.
    ENDS: leave the state at the end of the chunk, and in `span` the sum of its time steps.

    1d: the state [N, BE] between tiles stays on chip; `kept` [B, tiles, N, E] gets it with KEEP; a chunk's first or
    last state is in P_ver [B, chunks, N, E], its span [B, chunks, E].
    2d: the carries [N, TH, BE] along a row of tiles stay on chip; P_hor [B, chunks, tiles / EVERY, N, TH, E] gets those
    into every tile of the backward with KEEP, which is EVERY of these side by side. P_ver [B, chunks, slots, N,
    columns, E] holds the carries into a row of tiles; with KEEP there is a slot for every row in the chunk, else (and
    with ENDS) two in turns, since a tile must not overwrite what another warp of the same program may still be reading.
    A chunk starts from slot 0 of P_ver, and its end is in the slot behind its last row. span [B, chunks, columns, E].
    """
    P: tl.constexpr = TH * TW
    program = tl.program_id(0)
    chunk = (program // blocks) % chunks
    b = (program // (blocks * chunks)).to(tl.int64)
    part = b * chunks + chunk
    first_channel = (program % blocks).to(tl.int64) * BE
    channel = tl.arange(0, BE)
    is_channel = tl.full([BE], 1, tl.int1) if EVEN else first_channel + channel < E
    dstate = tl.arange(0, N_BLOCK)
    p = tl.arange(0, P)
    tiles_w = tl.cdiv(WT + lead_j, EVERY * TW) * EVERY if TWO_D else 1
    columns = tiles_w * TW
    tiles = tl.cdiv(HT * WT, P)  # of a sequence

    # Scalar 64-bit steps to this sample and block, so that offsets inside a block are short.
    x += b * x_b + first_channel
    dt += b * dt_b
    if RANK == 0:
        dt += first_channel
    B += b * B_b
    C += b * B_b
    y += b * x_b + first_channel
    P_hor += first_channel
    P_ver += first_channel
    span += first_channel

    # Lines 2, 3, 10 and 13: parameters, once for all tiles.
    bias_e = tl.load(bias + first_channel + channel, mask=is_channel, other=0.0)
    A_ne = load_parameters(A + first_channel * N, channel, is_channel, dstate, N) * LOG2E
    R_ne = A_ne
    if OUTPUT:
        skip_e = tl.load(D + first_channel + channel, mask=is_channel, other=0.0)
        if CORRECTION > 0:
            R_ne = load_parameters(R + first_channel * N, channel, is_channel, dstate, N)
    weight_re = 0.0
    if RANK > 0:
        weight_re = load_parameters(weight + first_channel * RANK, channel, is_channel, tl.arange(0, RANK_BLOCK), RANK)
    state_ne = tl.zeros([N_BLOCK, BE], tl.float32)
    span_e = tl.zeros([BE], tl.float32)
    hor_nie = tl.zeros([N_BLOCK, TH, BE], tl.float32)
    is_state = (dstate[:, None] < N) & is_channel[None, :]
    if ENTRY and not TWO_D:
        state_ne = tl.load(P_ver + (part * N + dstate[:, None]) * E + channel[None, :], mask=is_state, other=0.0)

    for tile in range(per_chunk * tiles_w):
        tile_i = tile // tiles_w
        tile_j = tile % tiles_w
        i0, j0, i, j, inside = tile_positions(chunk * per_chunk + tile_i, tile_j, lead_i, lead_j, HT, WT, TWO_D, TH, TW)
        is_element = inside[:, None] & is_channel[None, :]
        delta, _low = load_time_step(
            dt + (i0 * dt_i + j0 * dt_j), i * dt_i + j * dt_j, inside, channel, is_channel, bias_e, weight_re,
            RANK, RANK_BLOCK,
        )  # fmt: skip
        x_offset = (i0 * x_i + j0 * x_j) + (i * x_i + j * x_j)[:, None] + channel[None, :]
        x_tile = tl.load(x + x_offset, mask=is_element, other=0.0).to(tl.float32)
        delta = along_lanes(delta)
        x_tile = along_lanes(x_tile)
        u = x_tile if ADJOINT else delta * x_tile
        if OUTPUT:
            y_tile = x_tile * skip_e[None, :]  # line 26, first instead of last
        B_tile = B + (i0 * B_i + j0 * B_j)
        C_tile = C + (i0 * B_i + j0 * B_j)
        B_offset = i * B_i + j * B_j
        if TWO_D:
            row = tl.arange(0, TH)
            column = tl.arange(0, TW)
            if KEEP and not ENDS:
                ver_in, ver_out, ver_slots = tile_i, tile_i + 1, per_chunk
            else:
                ver_in, ver_out, ver_slots = tile_i % 2, (tile_i + 1) % 2, 2
            hor_out_base = P_hor + ((part * (per_chunk * tiles_w) + tile) // EVERY + 1) * N * TH * E
            ver_in_base = P_ver + ((part * ver_slots + ver_in) * N * columns + tile_j * TW) * E
            ver_out_base = P_ver + ((part * ver_slots + ver_out) * N * columns + tile_j * TW) * E
            hor_offset = row[:, None] * E + channel[None, :]
            ver_offset = column[:, None] * E + channel[None, :]
            hor_nie = tl.where(tl.zeros(hor_nie.shape, tl.int32) + tile_j > 0, hor_nie, 0.0)  # a row begins at 0
            is_last = (tile_j + 1) // EVERY - tile_j // EVERY  # of a tile of the backward
            has_right = only_if(is_channel[None, :], is_last * (tiles_w - 1 - tile_j))
            has_above = is_channel[None, :] if ENTRY else only_if(is_channel[None, :], tile_i)
            has_below = is_channel[None, :] if ENDS else only_if(is_channel[None, :], per_chunk - 1 - tile_i)
            if ENDS:
                span_pointer = span + (part * columns + tile_j * TW) * E + ver_offset
                above = tl.load(span_pointer, mask=only_if(is_channel[None, :], tile_i), other=0.0)
                span_here = tl.sum(tl.reshape(delta, [TH, TW, BE]), axis=0)
                tl.store(span_pointer, above + span_here, mask=is_channel[None, :])
        else:
            if KEEP:
                kept_tile = kept + ((b * tiles + chunk * per_chunk + tile) * N * E + first_channel)
                is_kept = only_if(is_state, tiles - chunk * per_chunk - tile)
                tl.store(kept_tile + dstate[:, None] * E + channel[None, :], state_ne, mask=is_kept)
            if ENDS:
                span_e += tl.sum(delta, axis=0)

        for s in range(N):
            A_e = pick(A_ne, dstate, s)
            B_p = tl.load(B_tile + (B_offset + s), mask=inside, other=0.0).to(tl.float32)
            a = tl.exp2(delta * A_e[None, :])
            bx = B_p[:, None] * u
            if ADJOINT:
                bx *= a
            if TWO_D:
                # Lines 17 to 20: along the rows. A carry joins the first column, so that products of Abar along the
                # tile need not outlive the scan.
                hor = tl.sum(tl.where(dstate[:, None, None] == s, hor_nie, 0.0), axis=0)
                a3 = tl.reshape(a, [TH, TW, BE])
                from_left = tl.where(column[None, :, None] == 0, a3 * hor[:, None, :], 0.0)
                _product, g = tl.associative_scan((a3, tl.reshape(bx, [TH, TW, BE]) + from_left), 1, compose)
                last_column = tl.sum(tl.where(column[None, :, None] == TW - 1, g, 0.0), axis=1)
                hor_nie = tl.where(dstate[:, None, None] == s, last_column[None, :, :], hor_nie)
                if KEEP:
                    tl.store(hor_out_base + (hor_offset + s * TH * E), last_column, mask=has_right)
                # Lines 21 to 24: along the columns; the carry is P_ver, where line 22 prints P_hor.
                ver = tl.load(ver_in_base + (ver_offset + s * columns * E), mask=has_above, other=0.0)
                from_above = tl.where(row[:, None, None] == 0, a3 * ver[None, :, :], 0.0)
                _product, h3 = tl.associative_scan((a3, g + from_above), 0, compose)
                last_row = tl.sum(tl.where(row[:, None, None] == TH - 1, h3, 0.0), axis=0)
                tl.store(ver_out_base + (ver_offset + s * columns * E), last_row, mask=has_below)
                h = tl.reshape(h3, [P, BE])
            else:
                before = tl.where(p[:, None] == 0, a * pick(state_ne, dstate, s)[None, :], 0.0)
                _product, h = tl.associative_scan((a, bx + before), 0, compose)
                last = tl.sum(tl.where(p[:, None] == P - 1, h, 0.0), axis=0)
                state_ne = tl.where(dstate[:, None] == s, last[None, :], state_ne)
            if OUTPUT:
                C_p = tl.load(C_tile + (B_offset + s), mask=inside, other=0.0).to(tl.float32)
                if CORRECTION == 1:
                    y_tile += C_p[:, None] * h - pick(R_ne, dstate, s)[None, :] * bx
                elif CORRECTION == 2:
                    y_tile += C_p[:, None] * (h - pick(R_ne, dstate, s)[None, :] * bx)
                else:
                    y_tile += C_p[:, None] * h

        if OUTPUT:
            y_tile += tl.load(y + x_offset, mask=only_if(is_element, 1 - first), other=0.0)
            tl.store(y + x_offset, y_tile, mask=is_element)
        if TWO_D:
            tl.debug_barrier()  # the next tile reads carries that other threads of this program wrote

    if ENDS and not TWO_D:
        tl.store(P_ver + (part * N + dstate[:, None]) * E + channel[None, :], state_ne, mask=is_state)
        tl.store(span + part * E + channel, span_e, mask=is_channel)
