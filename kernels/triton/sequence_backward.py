"""Eq. (1D GeoMamba-SSM) on a GPU, backward: every gradient, all directions, samples, blocks and chunks in one launch.

With lam[t] = C[t] dy[t] + Abar[t+1] lam[t+1], the gradient of the state h[t], and nu = Abar lam, a tile needs the state
that enters it (kept by the forward) and the nu of the step behind it (from the tile that was done before):

    through = lam Abar h[t-1]                          d(delta) += A through,  dA += delta through
    direct = lam - R dy    (state form: lam - C R dy)  d(delta x) += B direct,  dB += (delta x) direct
    dC += dy h    (state form: dy (h - R Bbar x))      dR -= Bbar x dy    (state form: C Bbar x dy)

A program is one warp with one or two channels a lane. The steps of a tile are tuples of tensors [channels], since one
of the two recurrences runs against the order, and in a thread's registers that costs nothing.

Axes: B batch, K scan directions, E channels, N dstates, r rank of the time step, P steps of a tile.
"""
# mypy: disable-error-code="no-untyped-def,assignment"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own; tuples grow.
# Tuples of a kernel grow by +, the form that every release of Triton takes.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.arithmetic import (
    LOG2E,
    held,
    held_slopes,
    hold_of,
    inverse_of,
    own_of,
    softplus,
    softplus_slope,
    turned,
)
from geomano_hpc.kernels.triton.sequence_forward import copy_turned, offsets_of

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def rows_of(z, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """[ROWS, COLUMNS] with the rows in registers -> a tuple of tensors [COLUMNS], in order."""
    parts = (z,)
    for level in tl.static_range((ROWS > 1) + (ROWS > 2) + (ROWS > 4) + (ROWS > 8) + (ROWS > 16) + (ROWS > 32)):
        halves = ()
        for k in tl.static_range(len(parts)):
            two = tl.reshape(parts[k], [2, (ROWS >> level) // 2, COLUMNS])
            low, high = tl.split(tl.permute(two, [1, 2, 0]))
            halves = halves + (low, high)
        parts = halves
    rows = ()
    for k in tl.static_range(ROWS):
        rows = rows + (tl.reshape(parts[k], [COLUMNS]),)
    return rows


@triton.jit
def columns_of(z, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """[ROWS, COLUMNS] -> a tuple of tensors [ROWS], in order."""
    parts = (z,)
    for level in tl.static_range((COLUMNS > 1) + (COLUMNS > 2) + (COLUMNS > 4) + (COLUMNS > 8) + (COLUMNS > 16)):
        halves = ()
        for k in tl.static_range(len(parts)):
            two = tl.reshape(parts[k], [ROWS, 2, (COLUMNS >> level) // 2])
            low, high = tl.split(tl.permute(two, [0, 2, 1]))
            halves = halves + (low, high)
        parts = halves
    columns = ()
    for k in tl.static_range(COLUMNS):
        columns = columns + (tl.reshape(parts[k], [ROWS]),)
    return columns


@triton.jit
def side_by_side(values, BE: tl.constexpr):
    """A tuple of 2^m tensors [BE] -> [BE, 2^m], in order."""
    count: tl.constexpr = len(values)
    parts = values
    for _level in tl.static_range((count > 1) + (count > 2) + (count > 4) + (count > 8) + (count > 16) + (count > 32)):
        joined = ()
        for k in tl.static_range(len(parts) // 2):
            joined = joined + (tl.join(parts[k], parts[k + len(parts) // 2]),)
        parts = joined
    return tl.reshape(parts[0], [BE, count])


@triton.jit
def sum_over_channels(values, BE: tl.constexpr, LANES: tl.constexpr):
    """Sums of a tuple of tensors [BE], as one tensor: channels of a lane first, then values change places with lanes.

    A split wants its axis in registers, and gives the lanes to the axis before it: the values. So one exchange through
    shared memory does what ten instructions a value would do in the layout of the values.
    """
    count: tl.constexpr = len(values)
    of_lane = tl.sum(tl.reshape(side_by_side(values, BE), [BE // LANES, LANES, count]), axis=0)
    even, odd = tl.split(tl.permute(tl.reshape(of_lane, [LANES // 2, 2, count]), [0, 2, 1]))
    return tl.sum(even + odd, axis=0)


@triton.jit(
    do_not_specialize=["batch", "K", "H", "W", "E", "orders", "dt_row", "dt_direction", "B_row", "B_direction",
                       "chunks", "per_chunk", "zero", "own_H", "own_W", "hold_H", "hold_W"],
    do_not_specialize_on_alignment=["x", "dt", "A", "B", "C", "D", "R", "bias", "weight", "dy", "kept", "ends", "span",
                                    "dx_part", "over_channels", "of_parameters", "ddt", "scratch"],
)  # fmt: skip
def sequence_backward_kernel(
    x, dt, A, B, C, D, R, bias, weight, dy, kept, ends, span, dx_part, over_channels, of_parameters, ddt, scratch,
    batch, K, H, W, E, orders, dt_row, dt_direction, B_row, B_direction, chunks, per_chunk, zero,
    own_H, own_W, hold_H, hold_W,
    RANK: tl.constexpr, N: tl.constexpr, CORRECTION: tl.constexpr, NEEDS_R: tl.constexpr,
    P: tl.constexpr, BE: tl.constexpr, LANES: tl.constexpr, GROUP: tl.constexpr,
    OWN: tl.constexpr, HOLD: tl.constexpr,
):  # fmt: skip
    """One program: direction k, sample b, a chunk of `per_chunk` steps (a multiple of P) and a block of BE channels,
    from the chunk's end to its start. Grid: K * batch * chunks * cdiv(E, BE), one warp of LANES lanes, BE a multiple.

    Reads kept [K, B, tiles, N, E] of sequence_forward_kernel (its SEQUENCE_TILE is P), and of later chunks ends and
    span as its SWEEP 2 leaves them. Writes dx_part [K, B, points, E]; over_channels [K, B, blocks, 2 N + r, tiles * P],
    sums over a block of dB, dC and a low-rank ddt; of_parameters [K, B * chunks, 2 N + 2 + r, E], sums over a chunk of
    dA, dR (only if NEEDS_R), dD, dbias, dweight; a full ddt [B, points, K, E] (RANK 0).

    GROUP ranks at a time (a power of 2): their GROUP P sums over channels need as many registers; 4 suits a warp.
    scratch [programs, 5 N + 2 RANKS, BE], RANKS = r rounded up to GROUP, needs no values; zero is 0. Pointers that a
    mode does not use may be any.
    """
    RANKS: tl.constexpr = (RANK + GROUP - 1) // GROUP * GROUP
    first = tl.program_id(0)
    blocks = tl.cdiv(E, BE)
    points = H * W
    all_tiles = tl.cdiv(points, P)
    first_channel = (first % blocks) * BE
    chunk = (first // blocks) % chunks
    kb = first // (blocks * chunks)
    k = kb // batch
    b = (kb % batch).to(tl.int64)
    channel = tl.arange(0, BE)
    is_channel = first_channel + channel < E
    corner, step_i, step_j, _HT, WT = turned(orders, k, H, W)

    # Scalar 64-bit steps to this direction, sample and block, so that offsets inside are short.
    x += b * points * E + first_channel
    dy += b * points * E + first_channel
    dt += b * points * dt_row + k.to(tl.int64) * dt_direction
    ddt += (b * points * K + k) * E + first_channel
    B += b * points * B_row + k.to(tl.int64) * B_direction
    C += b * points * B_row + k.to(tl.int64) * B_direction
    C_from_B = (C.to(tl.int64) - B.to(tl.int64)) // (B.dtype.element_ty.primitive_bitwidth // 8)
    A += (k * E + first_channel) * N
    R += (k * E + first_channel) * N
    weight += (k * E + first_channel) * RANK
    dx_part += kb.to(tl.int64) * points * E + first_channel
    kept += kb.to(tl.int64) * all_tiles * N * E + first_channel
    ends += kb.to(tl.int64) * chunks * N * E + first_channel
    span += kb.to(tl.int64) * chunks * E + first_channel
    over_channels += (kb.to(tl.int64) * blocks + first % blocks) * (2 * N + RANK) * (all_tiles * P)
    of_parameters += (kb.to(tl.int64) * chunks + chunk) * (2 * N + 2 + RANK) * E + first_channel
    # Of a dstate: nu, A, R, dA, dR side by side, so that one address serves them; of a rank: weight, dweight.
    scratch += first.to(tl.int64) * (5 * N + 2 * RANKS) * BE
    row: tl.constexpr = 5 * BE
    weights = scratch + N * row

    bias_e = tl.load(bias + k * E + first_channel + channel, mask=is_channel, other=0.0)
    D_e = tl.load(D + k * E + first_channel + channel, mask=is_channel, other=0.0)
    if RANK == 0:
        dt += first_channel
    for r in range(0, RANKS, GROUP):
        q = r + tl.arange(0, GROUP)
        is_weight = (q < RANK)[:, None] & is_channel[None, :]
        at = weights + q[:, None] * (2 * BE) + channel[None, :]
        tl.store(at, tl.load(weight + channel[None, :] * RANK + q[:, None], mask=is_weight, other=0.0))
        tl.store(at + BE, tl.zeros([GROUP, BE], tl.float32))
    for s in range(0, N, 8):
        n = s + tl.arange(0, 8)
        is_row = (n < N)[:, None] & (channel >= 0)[None, :]
        is_state = (n < N)[:, None] & is_channel[None, :]
        own = scratch + n[:, None] * row + channel[None, :]
        A_ne = copy_turned(A, scratch + BE, n, channel, is_channel, LOG2E, N, row)
        if CORRECTION > 0:
            copy_turned(R, scratch + 2 * BE, n, channel, is_channel, 1.0, N, row)
        tl.store(own + 3 * BE, tl.zeros([8, BE], tl.float32), mask=is_row)
        if NEEDS_R:
            tl.store(own + 4 * BE, tl.zeros([8, BE], tl.float32), mask=is_row)
        nu_ne = tl.zeros([8, BE], tl.float32)
        for back in range(chunks - 1 - chunk):
            later = chunks - 1 - back
            span_e = tl.load(span + later * E + channel, mask=is_channel, other=0.0)
            end = ends + (later * N + n[:, None]) * E + channel[None, :]
            nu_ne = tl.exp2(A_ne * span_e[None, :]) * nu_ne + tl.load(end, mask=is_state, other=0.0)
        tl.store(own, nu_ne, mask=is_row)
    tl.debug_barrier()  # below, rows of the scratch belong to one thread per channel

    own_along = 0.0
    if OWN:
        _own_down, own_along = own_of(orders, k, own_H, own_W)
    hold = 1.0
    if HOLD == 2:
        hold = hold_of(orders, k, hold_H, hold_W)
    dD_e = tl.zeros([BE], tl.float32)
    dbias_e = tl.zeros([BE], tl.float32)
    p = tl.arange(0, P)
    group = tl.arange(0, GROUP)
    start = chunk * per_chunk
    tiles = tl.cdiv(tl.minimum(per_chunk, points - start), P)
    for back in range(tiles):
        t = start + (tiles - 1 - back) * P
        if OWN:
            first_counts = tl.where(t == 0, 1.0 + own_along, 1.0)
        # Kept states come from far, so that each is asked for one dstate ahead.
        kept_here = kept + (t // P).to(tl.int64) * N * E + channel
        entering = tl.load(kept_here, mask=is_channel, other=0.0)
        is_element = (t + p < points)[:, None] & is_channel[None, :]
        dt_at = offsets_of(t, p, corner, step_i, step_j, WT, dt_row, P)
        if RANK == 0:
            raw = tl.load(dt + dt_at[:, None] + channel[None, :], mask=is_element, other=0.0).to(tl.float32)
            raw += bias_e[None, :]
        else:
            raw = tl.zeros([P, BE], tl.float32) + bias_e[None, :]
            for r in range(0, RANKS, GROUP):
                is_low = (t + p < points)[:, None] & (r + group < RANK)[None, :]
                low = tl.load(dt + dt_at[:, None] + (r + group)[None, :], mask=is_low, other=0.0).to(tl.float32)
                lows = columns_of(low, P, GROUP)
                for g in tl.static_range(GROUP):
                    raw += lows[g][:, None] * tl.load(weights + (r + g) * (2 * BE) + channel)[None, :]
        # Steps outside have delta 0, x 0 and dy 0, so that they change nothing.
        delta_pe = tl.where(is_element, softplus(raw), 0.0)
        x_at = tl.gather(offsets_of(t, p, corner, step_i, step_j, WT, E, P), p, 0)[:, None] + channel[None, :]
        dy_pe = tl.load(dy + x_at, mask=is_element, other=0.0).to(tl.float32)
        delta = rows_of(delta_pe, P, BE)
        x_pe = tl.load(x + x_at, mask=is_element, other=0.0).to(tl.float32)
        u = rows_of(x_pe if HOLD > 0 else delta_pe * x_pe, P, BE)
        dys = rows_of(dy_pe, P, BE)
        du = rows_of(tl.zeros([P, BE], tl.float32), P, BE)
        dd = rows_of(tl.zeros([P, BE], tl.float32), P, BE)
        # B and C in one load with an element for every lane (a shorter one would be made by every lane for itself).
        B_at = offsets_of(t, p, corner, step_i, step_j, WT, B_row, P)
        for s in range(N):
            both = B_at[:, None, None] + tl.arange(0, LANES // P // 2)[None, :, None] * 0 + s
            both = both + tl.arange(0, 2)[None, None, :] * C_from_B
            is_both = (t + p < points)[:, None, None] & (both == both)
            B_several, C_several = tl.split(tl.load(B + both, mask=is_both, other=0.0).to(tl.float32))
            B_p = columns_of(B_several, P, LANES // P // 2)[0]
            C_p = columns_of(C_several, P, LANES // P // 2)[0]
            Bs = rows_of(tl.broadcast_to(B_p[:, None], [P, BE]), P, BE)
            Cs = rows_of(tl.broadcast_to(C_p[:, None], [P, BE]), P, BE)
            own = scratch + s * row + channel
            A_e = tl.load(own + BE)
            h = entering
            entering = tl.load(kept_here + tl.minimum(s + 1, N - 1) * E, mask=is_channel, other=0.0)
            if CORRECTION > 0:
                R_e = tl.load(own + 2 * BE)
            if HOLD > 0:
                inverse = inverse_of(A_e, hold)
            helds = ()
            a = ()
            past = ()
            for_C = ()
            for q in tl.static_range(P):
                a_q = tl.exp2(delta[q] * A_e)
                past_q = a_q * h
                bx = Bs[q] * u[q]
                if HOLD > 0:
                    held_q = held(delta[q], A_e, a_q, hold, inverse, HOLD)
                    bx *= held_q
                    helds = helds + (held_q,)
                h = past_q + (bx * first_counts if OWN and q == 0 else bx)
                a = a + (a_q,)
                past = past + (past_q,)
                read = h + own_along * bx if OWN else h
                if CORRECTION == 2:
                    for_C = for_C + (dys[q] * (read - R_e * bx),)
                else:
                    for_C = for_C + (dys[q] * read,)
            tl.store(over_channels + (N + s) * (all_tiles * P) + (t + p), sum_over_channels(for_C, BE, LANES))
            nu = tl.load(own)
            dA_e = tl.load(own + 3 * BE)
            if NEEDS_R:
                dR_e = tl.load(own + 4 * BE)
            for_B = ()
            new_du = ()
            new_dd = ()
            for q in tl.static_range(P - 1, -1, -1):
                lam = nu + Cs[q] * dys[q]
                through = lam * past[q]
                nu = a[q] * lam
                direct = lam
                if OWN:
                    direct = (lam * first_counts if q == 0 else lam) + own_along * (Cs[q] * dys[q])
                if CORRECTION == 2:
                    direct -= R_e * (Cs[q] * dys[q])
                elif CORRECTION == 1:
                    direct -= R_e * dys[q]
                if HOLD > 0:
                    held_q = helds[q]
                    by_delta, by_A = held_slopes(delta[q], A_e, a[q], hold, inverse, held_q, HOLD)
                    of_held = Bs[q] * u[q] * direct
                    for_B = (u[q] * held_q * direct,) + for_B
                    new_du = (du[q] + Bs[q] * held_q * direct,) + new_du
                    new_dd = (dd[q] + (A_e * through + LOG2E * (of_held * by_delta)),) + new_dd
                    dA_e += delta[q] * through + hold * (of_held * by_A)
                else:
                    for_B = (u[q] * direct,) + for_B
                    new_du = (du[q] + Bs[q] * direct,) + new_du
                    new_dd = (dd[q] + A_e * through,) + new_dd
                    dA_e += delta[q] * through
                if NEEDS_R:
                    B_q = Bs[q] * helds[q] if HOLD > 0 else Bs[q]
                    if CORRECTION == 2:
                        dR_e -= (Cs[q] * B_q) * (u[q] * dys[q])
                    else:
                        dR_e -= B_q * (u[q] * dys[q])
            du = new_du
            dd = new_dd
            tl.store(own, nu)
            tl.store(own + 3 * BE, dA_e)
            if NEEDS_R:
                tl.store(own + 4 * BE, dR_e)
            tl.store(over_channels + s * (all_tiles * P) + (t + p), sum_over_channels(for_B, BE, LANES))

        # Offsets again, with a zero that the compiler does not know: kept through the loop they would spill.
        again = t + zero
        is_element = (again + p < points)[:, None] & is_channel[None, :]
        at = tl.gather(offsets_of(again, p, corner, step_i, step_j, WT, E, P), p, 0)[:, None] + channel[None, :]
        x_pe = tl.load(x + at, mask=is_element, other=0.0).to(tl.float32)
        du_pe = tl.trans(side_by_side(du, BE))
        dd_pe = tl.trans(side_by_side(dd, BE))
        if HOLD > 0:  # du is by x, and dd has all of delta
            tl.store(dx_part + at, du_pe + D_e[None, :] * dy_pe, mask=is_element)
            draw = dd_pe * LN2 * softplus_slope(delta_pe)
        else:
            tl.store(dx_part + at, du_pe * delta_pe + D_e[None, :] * dy_pe, mask=is_element)
            draw = (dd_pe * LN2 + du_pe * x_pe) * softplus_slope(delta_pe)  # dd was summed with A log2(e)
        dD_e += tl.sum(x_pe * dy_pe, axis=0)
        dbias_e += tl.sum(draw, axis=0)
        if RANK == 0:
            ddt_at = offsets_of(again, p, corner, step_i, step_j, WT, K * E, P)[:, None] + channel[None, :]
            tl.store(ddt + ddt_at, draw.to(ddt.dtype.element_ty), mask=is_element)
        else:
            draws = rows_of(draw, P, BE)
            low_at = offsets_of(again, p, corner, step_i, step_j, WT, dt_row, P)
            for r in range(0, RANKS, GROUP):
                is_low = (again + p < points)[:, None] & (r + group < RANK)[None, :]
                low = tl.load(dt + low_at[:, None] + (r + group)[None, :], mask=is_low, other=0.0).to(tl.float32)
                lows = columns_of(low, P, GROUP)
                for_dt = ()
                for g in tl.static_range(GROUP):
                    rank_at = weights + (r + g) * (2 * BE) + channel
                    weight_e = tl.load(rank_at)
                    tl.store(rank_at + BE, tl.load(rank_at + BE) + tl.sum(draw * lows[g][:, None], axis=0))
                    for q in tl.static_range(P):
                        for_dt = for_dt + (draws[q] * weight_e,)
                sums = sum_over_channels(for_dt, BE, LANES)
                w = tl.arange(0, GROUP * P)
                is_sum = r + w // P < RANK
                tl.store(over_channels + (2 * N + r + w // P) * (all_tiles * P) + (again + w % P), sums, mask=is_sum)

    for s in range(N):
        own = scratch + s * row + channel
        tl.store(of_parameters + s * E + channel, tl.load(own + 3 * BE), mask=is_channel)
        if NEEDS_R:
            tl.store(of_parameters + (N + s) * E + channel, tl.load(own + 4 * BE), mask=is_channel)
    tl.store(of_parameters + 2 * N * E + channel, dD_e, mask=is_channel)
    tl.store(of_parameters + (2 * N + 1) * E + channel, dbias_e, mask=is_channel)
    for r in range(RANK):
        dweight_e = tl.load(weights + (2 * r + 1) * BE + channel)
        tl.store(of_parameters + (2 * N + 2 + r) * E + channel, dweight_e, mask=is_channel)
