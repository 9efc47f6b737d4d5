"""SiLU(LayerNorm(y)) * SiLU(z) after the scan (Algorithm 1), and its gradients.

y, z, out, dout, dy, dz [rows, E]; weight, bias [E]; partial [programs, 2, E]: sums of a program's rows for weight and
bias. A program takes `per_program` rows, ROWS at a time.
"""
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.dense.activations import norm_gradient, normalised, sigmoid, silu, silu_slope


@triton.jit(do_not_specialize=["rows", "per_program"])
def norm_gate_kernel(
    y, z, weight, bias, out, rows, per_program, epsilon, E: tl.constexpr, BE: tl.constexpr, ROWS: tl.constexpr
):
    first = tl.program_id(0).to(tl.int64) * per_program
    count = tl.minimum(rows - first, per_program).to(tl.int32)
    e = tl.arange(0, BE)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    is_channel = e < E
    w = tl.load(weight + e, mask=is_channel, other=0.0).to(tl.float32)
    b = tl.load(bias + e, mask=is_channel, other=0.0).to(tl.float32)
    y += first * E
    z += first * E
    out += first * E
    for start in range(0, count, ROWS):
        here = (start + row < count) & is_channel
        at = (start + row) * E + e
        values = tl.load(y + at, mask=here, other=0.0).to(tl.float32)
        gate = tl.load(z + at, mask=here, other=0.0).to(tl.float32)
        n, _ = normalised(values, is_channel, epsilon, E)
        tl.store(out + at, silu(n * w + b) * silu(gate), mask=here)


@triton.jit(do_not_specialize=["rows", "per_program"])
def norm_gate_backward_kernel(
    y,
    z,
    weight,
    bias,
    dout,
    dy,
    dz,
    partial,
    rows,
    per_program,
    epsilon,
    E: tl.constexpr,
    BE: tl.constexpr,
    ROWS: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    first = program * per_program
    count = tl.minimum(rows - first, per_program).to(tl.int32)
    e = tl.arange(0, BE)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    is_channel = e < E
    w = tl.load(weight + e, mask=is_channel, other=0.0).to(tl.float32)
    b = tl.load(bias + e, mask=is_channel, other=0.0).to(tl.float32)
    y += first * E
    z += first * E
    dout += first * E
    dy += first * E
    dz += first * E
    dweight = tl.zeros([ROWS, BE], tl.float32)
    dbias = tl.zeros([ROWS, BE], tl.float32)
    for start in range(0, count, ROWS):
        here = (start + row < count) & is_channel
        at = (start + row) * E + e
        values = tl.load(y + at, mask=here, other=0.0).to(tl.float32)
        gate = tl.load(z + at, mask=here, other=0.0).to(tl.float32)
        d = tl.load(dout + at, mask=here, other=0.0).to(tl.float32)
        n, factor = normalised(values, is_channel, epsilon, E)
        u = n * w + b
        of_u = sigmoid(u)
        of_gate = sigmoid(gate)
        tl.store(dz + at, d * (u * of_u) * silu_slope(gate, of_gate), mask=here)
        du = tl.where(here, d * (gate * of_gate) * silu_slope(u, of_u), 0.0)
        tl.store(dy + at, norm_gradient(du * w, n, factor, E), mask=here)
        dweight += tl.where(here, du * n, 0.0)
        dbias += du
    channel = tl.arange(0, BE)
    sums = partial + program * (2 * E) + channel
    tl.store(sums, tl.sum(dweight, 0), mask=channel < E)
    tl.store(sums + E, tl.sum(dbias, 0), mask=channel < E)
