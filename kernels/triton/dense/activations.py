"""SiLU with its slope, and the norm of a row, in float32."""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)); an exp that overflows gives 0."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def silu_slope(x, of_x):
    """The derivative of SiLU at x, where the sigmoid has the value of_x."""
    return of_x * (1.0 + x * (1.0 - of_x))


@triton.jit
def normalised(x, is_channel, epsilon, E: tl.constexpr):
    """(x - mean) / sqrt(variance + epsilon) of each row of x [rows, channels], and that factor [rows, 1]. x is 0 where
    there is no channel, and so is the result."""
    mean = tl.sum(x, 1)[:, None] * (1.0 / E)
    centred = tl.where(is_channel, x - mean, 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, 1)[:, None] * (1.0 / E) + epsilon)
    return centred * factor, factor


@triton.jit
def norm_gradient(dnormalised, n, factor, E: tl.constexpr):
    """The gradient of what `normalised` took, from that of its result n."""
    mean = tl.sum(dnormalised, 1)[:, None] * (1.0 / E)
    along = tl.sum(dnormalised * n, 1)[:, None] * (1.0 / E)
    return factor * (dnormalised - mean - n * along)
