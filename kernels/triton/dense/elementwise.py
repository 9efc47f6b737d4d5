"""GELU (x Phi(x), with the error function) and the gate y SiLU(z) with their gradients, and A = -exp(A_log), number by
number.

A program whose BLOCK numbers are all there loads them without a mask: a mask that ends anywhere would split the 16
bytes of a thread's load.
"""
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.dense.activations import sigmoid, silu, silu_slope


@triton.jit
def normal_distribution(x):
    """Phi(x)."""
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def gelu_of(x):
    return x * normal_distribution(x)


@triton.jit
def gelu_slope(x):
    """Phi(x) + x phi(x), with phi the normal density."""
    return normal_distribution(x) + x * (0.3989422804014327 * tl.exp(-0.5 * x * x))


@triton.jit(do_not_specialize=["size"])
def gelu_kernel(x, out, size, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = first + tl.arange(0, BLOCK)
    if first + BLOCK <= size:
        tl.store(out + at, gelu_of(tl.load(x + at).to(tl.float32)))
    else:
        here = at < size
        tl.store(out + at, gelu_of(tl.load(x + at, mask=here, other=0.0).to(tl.float32)), mask=here)


@triton.jit(do_not_specialize=["size"])
def gelu_backward_kernel(x, dout, dx, size, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = first + tl.arange(0, BLOCK)
    if first + BLOCK <= size:
        slope = gelu_slope(tl.load(x + at).to(tl.float32))
        tl.store(dx + at, tl.load(dout + at).to(tl.float32) * slope)
    else:
        here = at < size
        slope = gelu_slope(tl.load(x + at, mask=here, other=0.0).to(tl.float32))
        tl.store(dx + at, tl.load(dout + at, mask=here, other=0.0).to(tl.float32) * slope, mask=here)


@triton.jit(do_not_specialize=["size"])
def gate_kernel(y, z, out, size, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = first + tl.arange(0, BLOCK)
    if first + BLOCK <= size:
        tl.store(out + at, tl.load(y + at).to(tl.float32) * silu(tl.load(z + at).to(tl.float32)))
    else:
        here = at < size
        of_z = silu(tl.load(z + at, mask=here, other=0.0).to(tl.float32))
        tl.store(out + at, tl.load(y + at, mask=here, other=0.0).to(tl.float32) * of_z, mask=here)


@triton.jit
def gate_gradients(d, y, z):
    of_z = sigmoid(z)
    return d * (z * of_z), d * y * silu_slope(z, of_z)


@triton.jit(do_not_specialize=["size"])
def gate_backward_kernel(y, z, dout, dy, dz, size, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = first + tl.arange(0, BLOCK)
    if first + BLOCK <= size:
        d = tl.load(dout + at).to(tl.float32)
        of_y, of_z = gate_gradients(d, tl.load(y + at).to(tl.float32), tl.load(z + at).to(tl.float32))
        tl.store(dy + at, of_y)
        tl.store(dz + at, of_z)
    else:
        here = at < size
        d = tl.load(dout + at, mask=here, other=0.0).to(tl.float32)
        values = tl.load(y + at, mask=here, other=0.0).to(tl.float32)
        of_y, of_z = gate_gradients(d, values, tl.load(z + at, mask=here, other=0.0).to(tl.float32))
        tl.store(dy + at, of_y, mask=here)
        tl.store(dz + at, of_z, mask=here)


@triton.jit(do_not_specialize=["size"])
def negative_exp_kernel(x, out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < size
    tl.store(out + at, -tl.exp(tl.load(x + at, mask=here, other=0.0).to(tl.float32)), mask=here)
