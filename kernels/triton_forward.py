"""Algorithm 2 of the paper as a Triton kernel, for one scan direction; with helpers that the backward kernel shares.

One program takes one sample and a block of BE channels, and walks the tiles in scan order. A tile is a matrix
[P, BE] of P positions: P consecutive steps of the sequence (1d), or TH x TW positions of the grid, row by row (2d).
The scan order is in the strides: pointers point at the corner where the traversal starts and steps may be negative,
so that i and j always count rows and columns of the turned grid. Offsets are 64-bit.

Positions and channels outside the grid are neutral: a time step of 0 gives Abar = 1 and an input of 0.
"""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def compose(a_first, b_first, a_second, b_second):
    """Two steps h -> a h + b, one after the other."""
    return a_first * a_second, a_second * b_first + b_second


@triton.jit
def log1p_of_unit(w):
    """log(1 + w) for 0 <= w <= 1, as 2 atanh(w / (2 + w)): full precision also where 1 + w rounds to 1."""
    z = w / (2.0 + w)
    z2 = z * z
    series = 1.0 / 15.0
    series = series * z2 + 1.0 / 13.0
    series = series * z2 + 1.0 / 11.0
    series = series * z2 + 1.0 / 9.0
    series = series * z2 + 1.0 / 7.0
    series = series * z2 + 1.0 / 5.0
    series = series * z2 + 1.0 / 3.0
    series = series * z2 + 1.0
    return 2.0 * z * series


@triton.jit
def softplus(raw):
    """log(1 + exp(raw)) without overflow; NaN stays NaN."""
    positive_part = tl.where(raw > 0.0, raw, 0.0)
    return positive_part + log1p_of_unit(tl.exp2(-tl.abs(raw) * LOG2E))


@triton.jit
def pick(table, row, wanted):
    """One row [BE] of a table [rows, BE] that stays on chip: parameters are read from memory once, not once a tile."""
    return tl.sum(tl.where(row[:, None] == wanted, table, 0.0), axis=0)


@triton.jit
def along_lanes(tile):
    """The same [P, BE], held so that a scan over the positions stays inside a warp.

    A gather along an axis makes the compiler lay that axis along the lanes of a warp. Without it, it keeps the layout
    of the loads, with positions spread over warps, and every scan, sum and reversal goes through shared memory.
    """
    P: tl.constexpr = tile.shape[0]
    return tl.gather(tile, tl.broadcast_to(tl.arange(0, P)[:, None], tile.shape), 0)


@triton.jit
def only_if(mask, number):
    """The mask if a scalar is positive, else nothing.

    The comparison is between blocks, since the interpreter of Triton 3.9 refuses masks made from a scalar one.
    """
    return mask & (tl.zeros(mask.shape, tl.int32) + number > 0)


@triton.jit
def load_parameters(pointer, channel, is_channel, row, rows):
    """[rows, BE] of a parameter that is stored [E, rows], as float32; 0 outside."""
    inside = (row[:, None] < rows) & is_channel[None, :]
    return tl.load(pointer + channel[None, :] * rows + row[:, None], mask=inside, other=0.0)


@triton.jit
def tile_positions(tile, HT, WT, TWO_D: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr):
    """Row, column and validity [P] of a tile's positions in the turned grid."""
    p = tl.arange(0, TH * TW)
    if TWO_D:
        tiles_w = tl.cdiv(WT, TW)
        i = (tile // tiles_w) * TH + p // TW
        j = (tile % tiles_w) * TW + p % TW
        inside = (i < HT) & (j < WT)
    else:
        t = tile * (TH * TW) + p
        i = t // WT
        j = t % WT
        inside = t < HT * WT
    return i.to(tl.int64), j.to(tl.int64), inside


@triton.jit
def load_time_step(
    dt, offset, inside, channel, is_channel, bias, weight, RANK: tl.constexpr, RANK_BLOCK: tl.constexpr
):  # fmt: skip
    """Line 7: delta = softplus(dt + bias) [P, BE], 0 outside, with the tile of low-rank factors [P, r] if there are.

    The product of the factors exists only here: Linear(dt_low) is never in memory.
    """
    if RANK > 0:
        rank = tl.arange(0, RANK_BLOCK)
        low = tl.load(dt + offset[:, None] + rank[None, :], mask=inside[:, None] & (rank[None, :] < RANK), other=0.0)
        low = low.to(tl.float32)
        raw = tl.dot(low, weight, input_precision="ieee")
    else:
        low = 0.0
        raw = tl.load(dt + offset[:, None] + channel[None, :], mask=inside[:, None] & is_channel[None, :], other=0.0)
        raw = raw.to(tl.float32)
    delta = softplus(raw + bias[None, :])
    return tl.where(inside[:, None] & is_channel[None, :], delta, 0.0), low


@triton.jit(do_not_specialize=["first"])
def forward_kernel(
    x, dt, A, B, C, D, R, bias, weight, y, kept, P_hor, P_ver,
    HT, WT, E, N, blocks, first,
    x_b, x_i, x_j, dt_b, dt_i, dt_j, B_b, B_i, B_j, C_b, C_i, C_j, y_b, y_i, y_j,
    TWO_D: tl.constexpr, CORRECTION: tl.constexpr, RANK: tl.constexpr, RANK_BLOCK: tl.constexpr,
    OUTPUT: tl.constexpr, KEEP: tl.constexpr,
    TH: tl.constexpr, TW: tl.constexpr, BE: tl.constexpr, N_BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Algorithm 2. OUTPUT: add this direction's y to what is there. KEEP: leave the carry into every tile for later.

    1d: the state [N, BE] between tiles stays on chip, `kept` gets it [B, tiles, N, E].
    2d: P_hor [B, slots, N, TH, E] and P_ver [B, slots, N, TW, E] hold the carries into a tile; a slot per tile
    with KEEP, else two for P_hor and two rows of them for P_ver, since a tile must not overwrite what another warp
    of the same program may still be reading.
    """
    P: tl.constexpr = TH * TW
    program = tl.program_id(0)
    b = (program // blocks).to(tl.int64)
    first_channel = (program % blocks).to(tl.int64) * BE
    channel = tl.arange(0, BE)
    is_channel = tl.full([BE], 1, tl.int1) if EVEN else first_channel + channel < E
    dstate = tl.arange(0, N_BLOCK)
    tiles_w = tl.cdiv(WT, TW)
    tiles = tl.cdiv(HT, TH) * tiles_w if TWO_D else tl.cdiv(HT * WT, P)

    # Scalar 64-bit steps to this sample and block, so that offsets inside a block are short.
    x += b * x_b + first_channel
    dt += b * dt_b
    if RANK == 0:
        dt += first_channel
    B += b * B_b
    C += b * C_b
    y += b * y_b + first_channel
    A += first_channel * N
    R += first_channel * N
    weight += first_channel * RANK
    bias += first_channel
    D += first_channel
    kept += first_channel
    P_hor += first_channel
    P_ver += first_channel

    # Lines 2, 3, 10 and 13: parameters, once for all tiles.
    bias_e = tl.load(bias + channel, mask=is_channel, other=0.0)
    skip_e = tl.load(D + channel, mask=is_channel, other=0.0)
    A_ne = load_parameters(A, channel, is_channel, dstate, N) * LOG2E
    R_ne = A_ne
    if CORRECTION > 0:
        R_ne = load_parameters(R, channel, is_channel, dstate, N)
    weight_re = 0.0
    if RANK > 0:
        weight_re = load_parameters(weight, channel, is_channel, tl.arange(0, RANK_BLOCK), RANK)
    state_ne = tl.zeros([N_BLOCK, BE], tl.float32)

    for tile in range(tiles):
        i, j, inside = tile_positions(tile, HT, WT, TWO_D, TH, TW)
        is_element = inside[:, None] & is_channel[None, :]
        delta, _ = load_time_step(
            dt, i * dt_i + j * dt_j, inside, channel, is_channel, bias_e, weight_re, RANK, RANK_BLOCK
        )
        x_tile = tl.load(x + (i * x_i + j * x_j)[:, None] + channel[None, :], mask=is_element, other=0.0).to(tl.float32)
        delta = along_lanes(delta)
        x_tile = along_lanes(x_tile)
        u = delta * x_tile
        y_tile = x_tile * skip_e[None, :]  # line 26, first instead of last
        B_offset = i * B_i + j * B_j
        C_offset = i * C_i + j * C_j
        if TWO_D:
            tile_i = tile // tiles_w
            tile_j = tile % tiles_w
            if KEEP:
                hor_in, hor_out = tile, tile + 1
                ver_in, ver_out = tile, tile + tiles_w
                hor_slots, ver_slots = tiles, tiles
            else:
                hor_in, hor_out = tile_j % 2, (tile_j + 1) % 2
                ver_in, ver_out = (tile_i % 2) * tiles_w + tile_j, ((tile_i + 1) % 2) * tiles_w + tile_j
                hor_slots, ver_slots = 2, 2 * tiles_w
            row = tl.arange(0, TH)
            column = tl.arange(0, TW)
            hor_in_base = P_hor + (b * hor_slots + hor_in) * N * TH * E
            hor_out_base = P_hor + (b * hor_slots + hor_out) * N * TH * E
            ver_in_base = P_ver + (b * ver_slots + ver_in) * N * TW * E
            ver_out_base = P_ver + (b * ver_slots + ver_out) * N * TW * E
            hor_offset = row[:, None] * E + channel[None, :]
            ver_offset = column[:, None] * E + channel[None, :]
        elif KEEP:
            kept_offset = ((b * tiles + tile) * N + dstate[:, None]) * E + channel[None, :]
            tl.store(kept + kept_offset, state_ne, mask=(dstate[:, None] < N) & is_channel[None, :])

        for s in range(N):
            A_e = pick(A_ne, dstate, s)
            B_p = tl.load(B + B_offset + s, mask=inside, other=0.0).to(tl.float32)
            a = tl.exp2(delta * A_e[None, :])
            bx = B_p[:, None] * u
            if TWO_D:
                # Lines 17 to 20: along the rows.
                hor = tl.load(
                    hor_in_base + s * TH * E + hor_offset, mask=only_if(is_channel[None, :], tile_j), other=0.0
                )
                a3 = tl.reshape(a, [TH, TW, BE])
                a_row, g_row = tl.associative_scan((a3, tl.reshape(bx, [TH, TW, BE])), 1, compose)
                g = g_row + a_row * hor[:, None, :]
                last_column = tl.sum(tl.where(column[None, :, None] == TW - 1, g, 0.0), axis=1)
                tl.store(
                    hor_out_base + s * TH * E + hor_offset,
                    last_column,
                    mask=only_if(is_channel[None, :], tiles_w - 1 - tile_j),
                )
                # Lines 21 to 24: along the columns; the carry is P_ver, where line 22 prints P_hor.
                ver = tl.load(
                    ver_in_base + s * TW * E + ver_offset, mask=only_if(is_channel[None, :], tile_i), other=0.0
                )
                a_column, h_column = tl.associative_scan((a3, g), 0, compose)
                h3 = h_column + a_column * ver[None, :, :]
                last_row = tl.sum(tl.where(row[:, None, None] == TH - 1, h3, 0.0), axis=0)
                tl.store(
                    ver_out_base + s * TW * E + ver_offset,
                    last_row,
                    mask=only_if(is_channel[None, :], tiles - tiles_w - tile),
                )
                h = tl.reshape(h3, [P, BE])
            else:
                a_sequence, h = tl.associative_scan((a, bx), 0, compose)
                h += a_sequence * pick(state_ne, dstate, s)[None, :]
                last = tl.sum(tl.where(tl.arange(0, P)[:, None] == P - 1, h, 0.0), axis=0)
                state_ne = tl.where(dstate[:, None] == s, last[None, :], state_ne)
            if OUTPUT:
                C_p = tl.load(C + C_offset + s, mask=inside, other=0.0).to(tl.float32)
                if CORRECTION == 1:
                    y_tile += C_p[:, None] * h - pick(R_ne, dstate, s)[None, :] * bx
                elif CORRECTION == 2:
                    y_tile += C_p[:, None] * (h - pick(R_ne, dstate, s)[None, :] * bx)
                else:
                    y_tile += C_p[:, None] * h

        if OUTPUT:
            y_pointer = y + (i * y_i + j * y_j)[:, None] + channel[None, :]
            y_tile += tl.load(y_pointer, mask=only_if(is_element, 1 - first), other=0.0)
            tl.store(y_pointer, y_tile, mask=is_element)
        if TWO_D:
            tl.debug_barrier()  # the next tile reads carries that other threads of this program wrote
