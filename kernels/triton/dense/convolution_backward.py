"""The gradients of SiLU(depthwise 3 x 3 convolution + bias) in one walk down the rows.

With u the convolution and g = dx SiLU'(u):

    dz[i, j]      = sum over a, c of weight[a, c] g[i + 1 - a, j + 1 - c]
    dweight[a, c] = sum over i, j of g[i, j] z[i + a - 1, j + c - 1]
    dbias         = sum over i, j of g[i, j]

A program computes u of its columns and of those to the left and right of them again, and reads two more rows and
columns of z, and one of dx, on each side, which a neighbour reads at about the same time: they come from the
second-level cache.

z, dx, dz [B, H, W, E]; weight [E, 3, 3]; bias [E]; partial [places, 10, E]: a program's sums for weight and bias.
"""
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.dense.activations import sigmoid, silu_slope
from geomano_hpc.kernels.triton.dense.convolution import place, plus, tap, value, width_of


@triton.jit
def g_of(u, dx, j, width):
    """dx SiLU'(u), and nothing from outside the grid, where u may be anything."""
    return tl.where((j >= 0) & (j < width), dx * silu_slope(u, sigmoid(u)), 0.0)


@triton.jit(do_not_specialize=["H", "W", "height", "segments", "column_blocks"])
def conv_silu_backward_kernel(
    z,
    weight,
    bias,
    dx,
    dz,
    partial,
    H,
    W,
    height,
    segments,
    column_blocks,
    E: tl.constexpr,
    BE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    base, first, count, j, e, number = place(H, W, height, segments, column_blocks, E, BE, COLUMNS)
    is_channel = e < E
    z += base
    dx += base
    dz += base
    w00, w01, w02 = tap(weight, e, is_channel, 0), tap(weight, e, is_channel, 1), tap(weight, e, is_channel, 2)
    w10, w11, w12 = tap(weight, e, is_channel, 3), tap(weight, e, is_channel, 4), tap(weight, e, is_channel, 5)
    w20, w21, w22 = tap(weight, e, is_channel, 6), tap(weight, e, is_channel, 7), tap(weight, e, is_channel, 8)
    b = tl.load(bias + e, mask=is_channel, other=0.0).to(tl.float32)
    line = W * E
    at = j * E + e
    zeros = tl.zeros([COLUMNS, BE], tl.float32)

    # Rows first - 2 and first - 1 of z: what they give to u of the rows first - 1 (here) and first (below), of the
    # columns to the left (l), of its own (c) and to the right (r). z of a row in columns j - 2 to j + 2: p to t.
    to = at - 2 * line
    width = width_of(first - 2, H, W)
    p = value(z, to - 2 * E, j - 2, width, is_channel)
    q = value(z, to - E, j - 1, width, is_channel)
    m = value(z, to, j, width, is_channel)
    s = value(z, to + E, j + 1, width, is_channel)
    t = value(z, to + 2 * E, j + 2, width, is_channel)
    here_l = plus(b, w00, w01, w02, p, q, m)
    here_c = plus(b, w00, w01, w02, q, m, s)
    here_r = plus(b, w00, w01, w02, m, s, t)
    to = at - line
    width = width_of(first - 1, H, W)
    p = value(z, to - 2 * E, j - 2, width, is_channel)
    q = value(z, to - E, j - 1, width, is_channel)
    m = value(z, to, j, width, is_channel)
    s = value(z, to + E, j + 1, width, is_channel)
    t = value(z, to + 2 * E, j + 2, width, is_channel)
    here_l = plus(here_l, w10, w11, w12, p, q, m)
    here_c = plus(here_c, w10, w11, w12, q, m, s)
    here_r = plus(here_r, w10, w11, w12, m, s, t)
    below_l = plus(b, w00, w01, w02, p, q, m)
    below_c = plus(b, w00, w01, w02, q, m, s)
    below_r = plus(b, w00, w01, w02, m, s, t)

    # z of rows i - 1 and i in columns j - 1 to j + 1, for dweight; row first - 2 is not needed for it.
    above_q, above_m, above_s = zeros, zeros, zeros
    at_q, at_m, at_s = q, m, s
    dz_above, dz_here = zeros, zeros
    d00, d01, d02 = zeros, zeros, zeros
    d10, d11, d12 = zeros, zeros, zeros
    d20, d21, d22 = zeros, zeros, zeros
    dbias = zeros
    for i in range(-1, count + 1):
        row = first + i
        to = at + i * line
        below = width_of(row + 1, H, W)
        p = value(z, to + line - 2 * E, j - 2, below, is_channel)
        q = value(z, to + line - E, j - 1, below, is_channel)
        m = value(z, to + line, j, below, is_channel)
        s = value(z, to + line + E, j + 1, below, is_channel)
        t = value(z, to + line + 2 * E, j + 2, below, is_channel)
        width = width_of(row, H, W)
        dx_l = value(dx, to - E, j - 1, width, is_channel)
        dx_c = value(dx, to, j, width, is_channel)
        dx_r = value(dx, to + E, j + 1, width, is_channel)

        g_l = g_of(plus(here_l, w20, w21, w22, p, q, m), dx_l, j - 1, width)
        g_c = g_of(plus(here_c, w20, w21, w22, q, m, s), dx_c, j, width)
        g_r = g_of(plus(here_r, w20, w21, w22, m, s, t), dx_r, j + 1, width)
        here_l = plus(below_l, w10, w11, w12, p, q, m)
        here_c = plus(below_c, w10, w11, w12, q, m, s)
        here_r = plus(below_r, w10, w11, w12, m, s, t)
        below_l = plus(b, w00, w01, w02, p, q, m)
        below_c = plus(b, w00, w01, w02, q, m, s)
        below_r = plus(b, w00, w01, w02, m, s, t)

        done = plus(dz_above, w02, w01, w00, g_l, g_c, g_r)
        tl.store(dz + to - line, done, mask=(j < tl.where(row > first, W, 0)) & is_channel)
        dz_above = plus(dz_here, w12, w11, w10, g_l, g_c, g_r)
        dz_here = plus(zeros, w22, w21, w20, g_l, g_c, g_r)

        g = tl.where(j < width_of(i, count, W), g_c, 0.0)
        d00 += g * above_q
        d01 += g * above_m
        d02 += g * above_s
        d10 += g * at_q
        d11 += g * at_m
        d12 += g * at_s
        d20 += g * q
        d21 += g * m
        d22 += g * s
        dbias += g
        above_q, above_m, above_s = at_q, at_m, at_s
        at_q, at_m, at_s = q, m, s

    channel = tl.ravel(e)
    keep = channel < E
    sums = partial + number.to(tl.int64) * (10 * E) + channel
    tl.store(sums, tl.sum(d00, 0), mask=keep)
    tl.store(sums + E, tl.sum(d01, 0), mask=keep)
    tl.store(sums + 2 * E, tl.sum(d02, 0), mask=keep)
    tl.store(sums + 3 * E, tl.sum(d10, 0), mask=keep)
    tl.store(sums + 4 * E, tl.sum(d11, 0), mask=keep)
    tl.store(sums + 5 * E, tl.sum(d12, 0), mask=keep)
    tl.store(sums + 6 * E, tl.sum(d20, 0), mask=keep)
    tl.store(sums + 7 * E, tl.sum(d21, 0), mask=keep)
    tl.store(sums + 8 * E, tl.sum(d22, 0), mask=keep)
    tl.store(sums + 9 * E, tl.sum(dbias, 0), mask=keep)
