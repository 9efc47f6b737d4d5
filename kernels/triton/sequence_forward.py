"""Eq. (1D GeoMamba-SSM) on a GPU, forward: all directions, samples, blocks of channels and chunks in one launch.

A program is one warp with one channel a lane. The steps of a tile stay in a thread's registers, so that the recurrence
h[t] = Abar[t] h[t-1] + Bbar[t] x[t] needs no other thread. The loop over the dstates stays a loop, short to compile;
what a dstate needs from tile to tile (its state, and its rows of A and R) is in a scratch of the program.

Axes: B batch, K scan directions, E channels, N dstates, r rank of the time step, P steps of a tile.
"""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.arithmetic import LOG2E, compose, held, hold_of, inverse_of, own_of, softplus, turned


@triton.jit
def offsets_of(t, p, corner, step_i, step_j, WT, row, P: tl.constexpr):
    """Offsets of the points of steps t + p, 0 <= p < P <= 64: `row` apart, (i, j) = divmod(t + p, WT).

    One division for the tile. Ends of rows inside of it are counted by a product with 1 / WT, exact for such small
    numbers; a row longer than P ends at most once, so its length counts as P.
    """
    i = t // WT
    j = t - i * WT
    narrow = tl.minimum(WT, P)
    reciprocal = (65535 + narrow) // narrow
    ends = (tl.maximum(j + narrow - WT, 0) * reciprocal + p * reciprocal) >> 16
    return (corner + i * step_i + j * step_j) * row + p * (step_j * row) + ends * ((step_i - WT * step_j) * row)


@triton.jit
def per_step(pointer, at, mask, p):
    """One value for each step p, 0 where masked, as float32. The gather, which changes nothing, keeps the conversion
    from half precision with the lane that loads: otherwise every lane would convert every value."""
    values = tl.load(pointer + at, mask=mask, other=0.0)
    if pointer.dtype.element_ty == tl.float32:
        return values
    return tl.gather(values.to(tl.float32), p, 0)


@triton.jit
def copy_turned(matrix, to, n, channel, is_channel, factor, N: tl.constexpr, ROW: tl.constexpr):
    """Columns n of a matrix [channels, N], times a factor, to a scratch with rows ROW apart, and returned."""
    mask = (n < N)[:, None] & is_channel[None, :]
    rows = tl.load(matrix + channel[None, :] * N + n[:, None], mask=mask, other=0.0) * factor
    tl.store(to + n[:, None] * ROW + channel[None, :], rows, mask=(n < N)[:, None] & (channel >= 0)[None, :])
    return rows


@triton.jit(
    do_not_specialize=["batch", "H", "W", "E", "orders", "dt_row", "dt_direction", "B_row", "B_direction", "chunks",
                       "per_chunk", "zero", "own_H", "own_W", "hold_H", "hold_W"],
    do_not_specialize_on_alignment=["x", "dt", "A", "B", "C", "D", "R", "bias", "weight", "y_part", "kept", "ends",
                                    "span", "scratch"],
)  # fmt: skip
def sequence_forward_kernel(
    x, dt, A, B, C, D, R, bias, weight, y_part, kept, ends, span, scratch,
    batch, H, W, E, orders, dt_row, dt_direction, B_row, B_direction, chunks, per_chunk, zero,
    own_H, own_W, hold_H, hold_W,
    RANK: tl.constexpr, N: tl.constexpr, CORRECTION: tl.constexpr, SWEEP: tl.constexpr, KEEP: tl.constexpr,
    P: tl.constexpr, BE: tl.constexpr, SEQUENCE_TILE: tl.constexpr, OWN: tl.constexpr, HOLD: tl.constexpr,
):  # fmt: skip
    """One program: direction k, sample b, a chunk of `per_chunk` steps (a multiple of P) and a block of BE channels.
    Grid: K * batch * chunks * cdiv(E, BE), one warp, BE = its lanes. On NVIDIA a SWEEP wants maxnreg=160, since the
    compiler aims at 128 registers there and spills one for it at some sizes.

    SWEEP 0 writes y_part [K, B, points, E], from the state that the earlier chunks' `ends` [K, B, chunks, N, E] and
    `span` [K, B, chunks, E] (their sums of delta) compose; with KEEP also kept [K, B, tiles, N, E], the states that
    enter every SEQUENCE_TILE steps. SWEEP 1 writes ends and span of its chunk, from state zero. SWEEP 2 does so for
    the adjoint states nu[t] = Abar[t] (nu[t+1] + C[t] dy[t]), backwards: x is dy, and B is C.

    OWN: points count own_H, own_W more for themselves, and the first for all after it, which nu does not know. HOLD as
    in grid_forward.
    scratch [programs, 3 N + RANKS, BE], RANKS = r rounded up to fours, needs no values; zero is 0. Pointers that a mode
    does not use may be any.
    """
    RANKS: tl.constexpr = (RANK + 3) // 4 * 4  # four at a time, so that their loads wait together
    first = tl.program_id(0)
    blocks = tl.cdiv(E, BE)
    points = H * W
    first_channel = (first % blocks) * BE
    chunk = (first // blocks) % chunks
    kb = first // (blocks * chunks)
    k = kb // batch
    b = (kb % batch).to(tl.int64)
    channel = tl.arange(0, BE)
    is_channel = first_channel + channel < E
    corner, step_i, step_j, _HT, WT = turned(orders, k, H, W)

    # Scalar 64-bit steps to this direction, sample and block, so that offsets inside are short.
    x_of = x + (b * points * E + first_channel) + channel
    dt += b * points * dt_row + k.to(tl.int64) * dt_direction
    B += b * points * B_row + k.to(tl.int64) * B_direction
    C += b * points * B_row + k.to(tl.int64) * B_direction
    y_part += kb.to(tl.int64) * points * E + first_channel
    A += (k * E + first_channel) * N
    R += (k * E + first_channel) * N
    scratch += first.to(tl.int64) * (3 * N + RANKS) * BE
    kept += kb.to(tl.int64) * tl.cdiv(points, SEQUENCE_TILE) * N * E + first_channel
    # Of a dstate: state, A, R, side by side, so that one address serves them.
    row: tl.constexpr = 3 * BE
    weights = scratch + N * row

    bias_e = tl.load(bias + k * E + first_channel + channel, mask=is_channel, other=0.0)
    if RANK == 0:
        dt += first_channel
    else:
        for r in range(0, RANKS, 4):
            q = r + tl.arange(0, 4)
            is_weight = (q < RANK)[:, None] & is_channel[None, :]
            at = (k * E + first_channel + channel)[None, :] * RANK + q[:, None]
            tl.store(weights + q[:, None] * BE + channel[None, :], tl.load(weight + at, mask=is_weight, other=0.0))
    if SWEEP == 0:
        D_e = tl.load(D + k * E + first_channel + channel, mask=is_channel, other=0.0)
    for s in range(0, N, 16):
        n = s + tl.arange(0, 16)
        is_state = (n < N)[:, None] & is_channel[None, :]
        A_ne = copy_turned(A, scratch + BE, n, channel, is_channel, LOG2E, N, row)
        h_ne = tl.zeros([16, BE], tl.float32)
        if SWEEP == 0:
            if CORRECTION > 0:
                copy_turned(R, scratch + 2 * BE, n, channel, is_channel, 1.0, N, row)
            for earlier in range(chunk):
                part = (kb * chunks + earlier).to(tl.int64)
                past = tl.load(span + (part * E + first_channel) + channel, mask=is_channel, other=0.0)
                end = ends + (part * N * E + first_channel) + n[:, None] * E + channel[None, :]
                h_ne = tl.exp2(A_ne * past[None, :]) * h_ne + tl.load(end, mask=is_state, other=0.0)
        tl.store(scratch + n[:, None] * row + channel[None, :], h_ne, mask=(n < N)[:, None] & (channel >= 0)[None, :])
    tl.debug_barrier()  # below, rows of the scratch belong to one thread per channel

    own_along = 0.0
    if OWN:
        _own_down, own_along = own_of(orders, k, own_H, own_W)
    hold = 1.0
    if HOLD == 2:
        hold = hold_of(orders, k, hold_H, hold_W)
    span_e = tl.zeros([BE], tl.float32)
    p = tl.arange(0, P)
    step = P - 1 - p if SWEEP == 2 else p  # the walk's p-th step in its tile
    start = chunk * per_chunk
    tiles = tl.cdiv(tl.minimum(per_chunk, points - start), P)
    for tile in range(tiles):
        t = start + (tiles - 1 - tile if SWEEP == 2 else tile) * P
        B_at = offsets_of(t, step, corner, step_i, step_j, WT, B_row, P)
        dt_at = offsets_of(t, step, corner, step_i, step_j, WT, dt_row, P)
        x_at = tl.gather(offsets_of(t, step, corner, step_i, step_j, WT, E, P), p, 0)
        left = points - t
        inside = step < left
        is_element = inside[:, None] & is_channel[None, :]

        # Eq. (discretisation): delta, and Bbar x = B (delta x). Steps outside have delta 0 and input 0.
        if RANK == 0:
            dt_at = tl.gather(dt_at, p, 0)
            raw = tl.load(dt + dt_at[:, None] + channel[None, :], mask=is_element, other=0.0).to(tl.float32)
            raw += bias_e[None, :]
        else:
            raw = tl.zeros([P, BE], tl.float32) + bias_e[None, :]
            for r in range(0, RANKS, 4):
                for g in tl.static_range(4):
                    is_low = inside if RANK == RANKS else inside & (r + g < RANK)
                    low = per_step(dt, dt_at + (r + g), is_low, p)
                    raw += low[:, None] * tl.load(weights + (r + g) * BE + channel)[None, :]
        delta = tl.where(inside[:, None], softplus(raw), 0.0)
        x_pe = tl.load(x_of[None, :] + x_at[:, None], mask=is_element, other=0.0).to(tl.float32)
        u = x_pe if SWEEP == 2 or HOLD > 0 else delta * x_pe
        if SWEEP == 0:
            y = D_e[None, :] * x_pe
            kept_here = kept + (t // SEQUENCE_TILE).to(tl.int64) * N * E + channel
        else:
            span_e += tl.sum(delta, axis=0)

        for s in range(N):
            own = scratch + s * row + channel
            A_e = tl.load(own + BE)[None, :]
            a = tl.exp2(delta * A_e)
            bx = per_step(B, B_at + s, inside, p)[:, None] * u
            if HOLD > 0:
                bx *= held(delta, A_e, a, hold, inverse_of(A_e, hold), HOLD)
            if SWEEP == 2:
                bx *= a
            before = tl.load(own)
            first_bx = bx
            if OWN:
                first_bx = bx * tl.where(t == 0, 1.0 + own_along, 1.0)
            # The state joins the first step, so that products of Abar need not outlive the scan.
            _a, h = tl.associative_scan((a, tl.where(p[:, None] == 0, a * before[None, :] + first_bx, bx)), 0, compose)
            # The sum of one value and -0.0 folds away, that with 0.0 does not.
            tl.store(own, tl.sum(tl.where(p[:, None] == P - 1, h, -0.0), axis=0))
            if SWEEP == 0:
                if KEEP:
                    for m in tl.static_range(P // SEQUENCE_TILE):
                        if m > 0:
                            before = tl.sum(tl.where(p[:, None] == m * SEQUENCE_TILE - 1, h, -0.0), axis=0)
                        # As a bound: the interpreter of Triton 3.9 refuses masks that a scalar condition is part of.
                        is_kept = channel < tl.where(m * SEQUENCE_TILE < left, E - first_channel, 0)
                        tl.store(kept_here + (m * N + s) * E, before, mask=is_kept)
                C_p = per_step(C, B_at + s, inside, p)[:, None]
                if OWN:
                    h += own_along * bx
                if CORRECTION == 2:
                    y += C_p * (h - tl.load(own + 2 * BE)[None, :] * bx)
                else:
                    y += C_p * h
                    if CORRECTION == 1:
                        y -= tl.load(own + 2 * BE)[None, :] * bx

        if SWEEP == 0:
            # Computed again with a zero that the compiler does not know: offsets kept through the loop would spill.
            at = tl.gather(offsets_of(t + zero, p, corner, step_i, step_j, WT, E, P), p, 0)
            tl.store(
                (y_part + channel)[None, :] + at[:, None], y, mask=(p < left + zero)[:, None] & is_channel[None, :]
            )

    if SWEEP > 0:
        # Again with the zero: what only this needs shall not stay in registers through the loops.
        blocks = tl.cdiv(E + zero, BE)
        last = tl.program_id(0) + zero
        part = (last // blocks).to(tl.int64)  # of [K, B, chunks]
        again = (last % blocks) * BE + (channel + zero)
        for s in range(N):
            h = tl.load(scratch + s * row + channel)
            tl.store(ends + part * N * E + s * E + again, h, mask=again < E)
        tl.store(span + part * E + again, span_e, mask=again < E)
