"""LayerNorm over the channels, and its gradients. A program takes `per_program` rows, ROWS at a time.

x, out, dout, dx [rows, E]; weight, bias [E]; partial [programs, 2, E]: sums of a program's rows for weight and bias.
"""
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.dense.activations import norm_gradient, normalised


@triton.jit(do_not_specialize=["rows", "per_program"])
def layer_norm_kernel(
    x, weight, bias, out, rows, per_program, epsilon, E: tl.constexpr, BE: tl.constexpr, ROWS: tl.constexpr
):
    first = tl.program_id(0).to(tl.int64) * per_program
    count = tl.minimum(rows - first, per_program).to(tl.int32)
    e = tl.arange(0, BE)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    is_channel = e < E
    w = tl.load(weight + e, mask=is_channel, other=0.0).to(tl.float32)
    b = tl.load(bias + e, mask=is_channel, other=0.0).to(tl.float32)
    x += first * E
    out += first * E
    for start in range(0, count, ROWS):
        here = (start + row < count) & is_channel
        at = (start + row) * E + e
        values = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        n, _ = normalised(values, is_channel, epsilon, E)
        tl.store(out + at, n * w + b, mask=here)


@triton.jit(do_not_specialize=["rows", "per_program"])
def layer_norm_backward_kernel(
    x, weight, dout, dx, partial, rows, per_program, epsilon, E: tl.constexpr, BE: tl.constexpr, ROWS: tl.constexpr
):
    program = tl.program_id(0).to(tl.int64)
    first = program * per_program
    count = tl.minimum(rows - first, per_program).to(tl.int32)
    e = tl.arange(0, BE)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    is_channel = e < E
    w = tl.load(weight + e, mask=is_channel, other=0.0).to(tl.float32)
    x += first * E
    dout += first * E
    dx += first * E
    dweight = tl.zeros([ROWS, BE], tl.float32)
    dbias = tl.zeros([ROWS, BE], tl.float32)
    for start in range(0, count, ROWS):
        here = (start + row < count) & is_channel
        at = (start + row) * E + e
        values = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        d = tl.load(dout + at, mask=here, other=0.0).to(tl.float32)
        n, factor = normalised(values, is_channel, epsilon, E)
        tl.store(dx + at, norm_gradient(d * w, n, factor, E), mask=here)
        dweight += tl.where(here, d * n, 0.0)
        dbias += d
    channel = tl.arange(0, BE)
    sums = partial + program * (2 * E) + channel
    tl.store(sums, tl.sum(dweight, 0), mask=channel < E)
    tl.store(sums + E, tl.sum(dbias, 0), mask=channel < E)
