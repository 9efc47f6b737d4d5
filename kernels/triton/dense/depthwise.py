"""activation(depthwise convolution + bias) with P x Q taps, both odd, and its gradients. Along an axis there are zeros
around the grid, or its other end.

With u the convolution and g = dx activation'(u), which goes through memory in float32:

    dz[i, j]      = sum over a, c of weight[a, c] g[i + P // 2 - a, j + Q // 2 - c]
    dweight[a, c] = sum over i, j of g[i, j] z[i + a - P // 2, j + c - Q // 2]
    dbias         = sum over i, j of g[i, j]

A lane is one channel of COLUMNS neighbouring points: what it loads of a row serves all taps that meet it. Loads of a
warp are neighbouring channels. The weights of a channel lie P Q apart in the model, so they come as [P Q, E].
"""
# mypy: disable-error-code="no-untyped-def,assignment,operator"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.
# Tuples of tensors are added; those of a loop keep their length.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.dense.activations import sigmoid, silu, silu_slope
from geomano_hpc.kernels.triton.dense.elementwise import gelu_of, gelu_slope


@triton.jit
def on_ring(point, size):
    """The point of a ring; a remainder has the sign of what is divided."""
    return (point % size + size) % size


@triton.jit
def row_at(i, sample, H, W, WRAP: tl.constexpr):
    """Where row i of a sample begins, in points, and whether it is there."""
    inside = (i >= 0) & (i < H)
    if WRAP:
        inside = i == i
        i = on_ring(i, H)
    return (sample * H + i).to(tl.int64) * W, inside


@triton.jit
def values(tensor, row, inside, j, e, W, COUNT: tl.constexpr, E: tl.constexpr, WRAP: tl.constexpr):
    """COUNT neighbours of a row from column j on, zero where they are outside; row, inside, j, e [lanes]."""
    found = ()
    start = tensor + row * E + e
    if WRAP:
        j = on_ring(j, W)
    else:
        j = tl.where(inside, j, W)  # one comparison is the mask, and none is kept over the rows: they would spill
    for k in tl.static_range(COUNT):
        if WRAP:
            value = tl.load(start + j * E, mask=inside, other=0.0)
            j = tl.where(j + 1 == W, 0, j + 1)
        else:
            here = (j + k).to(tl.uint32) < W.to(tl.uint32)  # and so not below zero
            value = tl.load(start + (j + k) * E, mask=here, other=0.0)
        found = found + (value.to(tl.float32),)
    return found


@triton.jit
def zeros(COUNT: tl.constexpr, LANES: tl.constexpr):
    found = ()
    for _n in tl.static_range(COUNT):
        found = found + (tl.zeros([LANES], tl.float32),)
    return found


@triton.jit(do_not_specialize=["H", "W", "P", "row_tiles", "column_tiles"])
def depthwise_kernel(
    z,
    weight,
    bias,
    dx,
    out,
    H,
    W,
    P,
    row_tiles,
    column_tiles,
    E: tl.constexpr,
    BE: tl.constexpr,
    ROWS: tl.constexpr,
    STRIPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    Q: tl.constexpr,
    WRAP_H: tl.constexpr,
    WRAP_W: tl.constexpr,
    GELU: tl.constexpr,
    RESULT: tl.constexpr,
):
    """P is not known to the compiler: it would unroll the rows of taps until registers spill.

    RESULT: the "activation"; its "slope" times dx, which is g; or the "gradient" dz of z, where z is g. A program
    takes BE channels of ROWS rows and STRIPS strips of COLUMNS columns."""
    BLOCKS: tl.constexpr = (E + BE - 1) // BE
    LANES: tl.constexpr = BE * ROWS * STRIPS
    program = tl.program_id(0)
    tile = program // BLOCKS
    lane = tl.arange(0, LANES)
    e = (program % BLOCKS) * BE + lane % BE
    j = ((tile % column_tiles) * STRIPS + lane // BE % STRIPS) * COLUMNS
    lines = tile // column_tiles
    i = (lines % row_tiles) * ROWS + lane // (BE * STRIPS)
    sample = lines // row_tiles
    is_channel = e < E

    sums = zeros(COLUMNS, LANES)
    for a in range(P):
        row, inside = row_at(i + a - P // 2, sample, H, W, WRAP_H)
        z_row = values(z, row, inside & is_channel, j - Q // 2, e, W, COLUMNS + Q - 1, E, WRAP_W)
        added = sums
        for c in tl.static_range(Q):
            tap = a * Q + c
            if RESULT == "gradient":
                tap = P * Q - 1 - tap
            w = tl.load(weight + tap * E + e, mask=is_channel, other=0.0).to(tl.float32)
            next_sums = ()
            for n in tl.static_range(COLUMNS):
                next_sums = next_sums + (added[n] + w * z_row[n + c],)
            added = next_sums
        sums = added

    row, inside = row_at(i, sample, H, W, False)
    at = row * E + e
    for n in tl.static_range(COLUMNS):
        here = inside & is_channel & (j + n < W)
        to = at + (j + n) * E
        if RESULT == "gradient":
            tl.store(out + to, sums[n], mask=here)
        else:
            u = sums[n] + tl.load(bias + e, mask=is_channel, other=0.0).to(tl.float32)
            if RESULT == "activation":
                tl.store(out + to, gelu_of(u) if GELU else silu(u), mask=here)
            else:
                slope = gelu_slope(u) if GELU else silu_slope(u, sigmoid(u))
                tl.store(out + to, tl.load(dx + to, mask=here, other=0.0).to(tl.float32) * slope, mask=here)


@triton.jit(do_not_specialize=["batch", "H", "W", "strips", "strips_of_place"])
def depthwise_weights_kernel(
    z,
    g,
    partial,
    batch,
    H,
    W,
    strips,
    strips_of_place,
    E: tl.constexpr,
    BE: tl.constexpr,
    TOGETHER: tl.constexpr,
    COLUMNS: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    TAP_ROWS: tl.constexpr,
    WRAP_H: tl.constexpr,
    WRAP_W: tl.constexpr,
):
    """partial [places, P Q + 1, E]: the sums over a place's strips, for weight and bias. A program takes BE channels,
    TAP_ROWS rows of taps, and TOGETHER strips at a time; `strips` are those of a row."""
    BLOCKS: tl.constexpr = (E + BE - 1) // BE
    GROUPS: tl.constexpr = (P + TAP_ROWS - 1) // TAP_ROWS
    LANES: tl.constexpr = BE * TOGETHER
    program = tl.program_id(0)
    lane = tl.arange(0, LANES)
    e = (program % BLOCKS) * BE + lane % BE
    is_channel = e < E
    first_tap = program // BLOCKS % GROUPS * TAP_ROWS
    place = program // (BLOCKS * GROUPS)

    sums = zeros(TAP_ROWS * Q, LANES)
    alone = tl.zeros([LANES], tl.float32)
    for start in range(0, strips_of_place, TOGETHER):
        strip = place * strips_of_place + start + lane // BE
        line = strip // strips
        j = (strip - line * strips) * COLUMNS
        sample = line // H
        i = line - sample * H
        here = is_channel & (sample < batch) & (start + lane // BE < strips_of_place)
        row, inside = row_at(i, sample, H, W, False)
        g_row = values(g, row, inside & here, j, e, W, COLUMNS, E, False)
        for n in tl.static_range(COLUMNS):
            alone += g_row[n]
        added = ()
        for a in tl.static_range(TAP_ROWS):
            row, inside = row_at(i + first_tap + a - P // 2, sample, H, W, WRAP_H)
            z_row = values(z, row, inside & here, j - Q // 2, e, W, COLUMNS + Q - 1, E, WRAP_W)
            for c in tl.static_range(Q):
                total = sums[a * Q + c]
                for n in tl.static_range(COLUMNS):
                    total += g_row[n] * z_row[n + c]
                added = added + (total,)
        sums = added

    channel = (program % BLOCKS) * BE + tl.arange(0, BE)
    to = partial + place.to(tl.int64) * ((P * Q + 1) * E) + channel
    for n in tl.static_range(TAP_ROWS * Q):
        tap = first_tap * Q + n
        total = tl.sum(tl.reshape(sums[n], [TOGETHER, BE]), 0)
        tl.store(to + tap * E, total, mask=channel < tl.where(tap < P * Q, E, 0))
    total = tl.sum(tl.reshape(alone, [TOGETHER, BE]), 0)
    tl.store(to + P * Q * E, total, mask=channel < tl.where(first_tap == 0, E, 0))
