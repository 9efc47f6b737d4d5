"""SiLU(depthwise 3 x 3 convolution + bias) (Algorithm 1), zeros around the grid.

A program takes COLUMNS columns and BE channels of `height` rows and walks down: what a row of z gives to the output
rows above, at and below it stays in registers, so that a row is read once. Its neighbours to the left and right are
loads of the same lines, which the first-level cache serves.

z, x [B, H, W, E]; weight [E, 3, 3]; bias [E].
"""
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.dense.activations import silu


@triton.jit
def place(H, W, height, segments, column_blocks, E: tl.constexpr, BE: tl.constexpr, COLUMNS: tl.constexpr):
    """Where a program works: its sample's and first row's offset, first row, rows, columns, channels, and number of
    its place. Blocks of channels come first, then of columns: neighbours in memory run side by side."""
    BLOCKS: tl.constexpr = (E + BE - 1) // BE
    program = tl.program_id(0)
    rest = program // BLOCKS
    e = (program % BLOCKS) * BE + tl.arange(0, BE)[None, :]
    j = (rest % column_blocks) * COLUMNS + tl.arange(0, COLUMNS)[:, None]
    lines = rest // column_blocks
    first = (lines % segments) * height
    sample = lines // segments
    base = (sample.to(tl.int64) * H + first) * W * E
    return base, first, tl.minimum(height, H - first), j, e, rest


@triton.jit
def width_of(i, H, W):
    """The columns that row i has: none outside the grid."""
    return tl.where((i >= 0) & (i < H), W, 0)


@triton.jit
def value(tensor, at, j, width, is_channel):
    """A row's values in the columns j, zero outside the grid."""
    return tl.load(tensor + at, mask=(j >= 0) & (j < width) & is_channel, other=0.0).to(tl.float32)


@triton.jit
def plus(total, a, b, c, left, centre, right):
    """total + a left + b centre + c right, in three instructions."""
    total += a * left
    total += b * centre
    return total + c * right


@triton.jit
def tap(weight, e, is_channel, NUMBER: tl.constexpr):
    return tl.load(weight + e * 9 + NUMBER, mask=is_channel, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["H", "W", "height", "segments", "column_blocks"])
def conv_silu_kernel(
    z,
    weight,
    bias,
    x,
    H,
    W,
    height,
    segments,
    column_blocks,
    E: tl.constexpr,
    BE: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """ROWS rows are loaded together."""
    base, first, count, j, e, _ = place(H, W, height, segments, column_blocks, E, BE, COLUMNS)
    is_channel = e < E
    z += base
    x += base
    w00, w01, w02 = tap(weight, e, is_channel, 0), tap(weight, e, is_channel, 1), tap(weight, e, is_channel, 2)
    w10, w11, w12 = tap(weight, e, is_channel, 3), tap(weight, e, is_channel, 4), tap(weight, e, is_channel, 5)
    w20, w21, w22 = tap(weight, e, is_channel, 6), tap(weight, e, is_channel, 7), tap(weight, e, is_channel, 8)
    b = tl.load(bias + e, mask=is_channel, other=0.0).to(tl.float32)
    line = W * E
    at = j * E + e

    width = width_of(first - 1, H, W)
    left = value(z, at - line - E, j - 1, width, is_channel)
    centre = value(z, at - line, j, width, is_channel)
    right = value(z, at - line + E, j + 1, width, is_channel)
    here = plus(b, w00, w01, w02, left, centre, right)
    left = value(z, at - E, j - 1, W, is_channel)
    centre = value(z, at, j, W, is_channel)
    right = value(z, at + E, j + 1, W, is_channel)
    here = plus(here, w10, w11, w12, left, centre, right)
    below = plus(b, w00, w01, w02, left, centre, right)
    for start in range(0, count, ROWS):
        for step in tl.static_range(ROWS):
            i = start + step
            to = at + i * line
            width = width_of(first + i + 1, H, W)
            left = value(z, to + line - E, j - 1, width, is_channel)
            centre = value(z, to + line, j, width, is_channel)
            right = value(z, to + line + E, j + 1, width, is_channel)
            u = plus(here, w20, w21, w22, left, centre, right)
            tl.store(x + to, silu(u), mask=(j < width_of(i, count, W)) & is_channel)
            here = plus(below, w10, w11, w12, left, centre, right)
            below = plus(b, w00, w01, w02, left, centre, right)
