"""Pieces of arithmetic that the Triton kernels share."""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
_SMALL = tl.constexpr(0.5 * 1.4426950408889634)  # up to |z| = 1/2 the quotients of a hold are polynomials


@triton.jit
def compose(a_first, b_first, a_second, b_second):
    """Two steps h -> a h + b, one after the other."""
    return a_first * a_second, a_second * b_first + b_second


@triton.jit
def log1p_of_unit(w):
    """log(1 + w) for 0 <= w <= 1 to 2e-7 of its value, also where 1 + w rounds to 1.

    w times the polynomial of degree 8 with the least largest relative error (3e-8, by Remez's exchange): no division.
    """
    series = 0.005232694093137980
    series = series * w - 0.02950523793697357
    series = series * w + 0.07822595536708832
    series = series * w - 0.1366324573755264
    series = series * w + 0.1910600662231445
    series = series * w - 0.2484298199415207
    series = series * w + 0.3331909775733948
    series = series * w - 0.4999949336051941
    series = series * w + 0.9999999403953552
    return series * w


@triton.jit
def softplus(raw):
    """log(1 + exp(raw)) without overflow; NaN stays NaN, in the second term."""
    return tl.maximum(raw, 0.0) + log1p_of_unit(tl.exp2(-tl.abs(raw) * LOG2E))


@triton.jit
def one_minus_exp(z):
    """1 - exp(-z) for z >= 0, by its series where that cancels."""
    series = 1.0 / 5040.0
    series = -series * z + 1.0 / 720.0
    series = -series * z + 1.0 / 120.0
    series = -series * z + 1.0 / 24.0
    series = -series * z + 1.0 / 6.0
    series = -series * z + 0.5
    series = -series * z + 1.0
    return tl.where(z < 0.25, series * z, 1.0 - tl.exp2(-z * LOG2E))


@triton.jit
def softplus_slope(delta):
    """The derivative of softplus where it took the value delta."""
    return one_minus_exp(delta)


@triton.jit
def turned(orders, k, H, W):
    """Traverse_d of Algorithm 1 for direction k: corner, step_i, step_j, rows and columns of the turned grid.

    Position (i, j) of the turned grid is point corner + i step_i + j step_j of the sample, a point being row * W +
    column. `orders` has three bits for each direction, as ScanOrder.code has them; all five results are scalars.
    """
    code = (orders >> (3 * k)) & 7
    down = code & 1
    rows_backwards = (code >> 1) & 1
    columns_backwards = code >> 2
    row_step = W * (1 - 2 * rows_backwards)
    column_step = 1 - 2 * columns_backwards
    corner = rows_backwards * (H - 1) * W + columns_backwards * (W - 1)
    step_i = row_step + down * (column_step - row_step)
    step_j = column_step + down * (row_step - column_step)
    return corner, step_i, step_j, H + down * (W - H), W + down * (H - W)


@triton.jit
def stretch_down(orders, k, stretch):
    """ScanSettings.stretch_down of direction k."""
    return tl.where(((orders >> (3 * k)) & 1) > 0, 1.0 / stretch, stretch)


@triton.jit
def own_of(orders, k, own_H, own_W):
    """ScanSettings.own_of of direction k: down its columns and along its rows."""
    column_major = ((orders >> (3 * k)) & 1) > 0
    return tl.where(column_major, own_W, own_H), tl.where(column_major, own_H, own_W)


@triton.jit
def hold_of(orders, k, hold_H, hold_W):
    """ScanSettings.hold_of of direction k."""
    return tl.where(((orders >> (3 * k)) & 1) > 0, hold_H, hold_W)


@triton.jit
def _of_small(s):
    """(phi(z) - 1) / s for z = s ln 2 from -1/2 to 0 and phi(z) = (exp(z) - 1) / z, to 1e-8: interpolated at
    Chebyshev's nodes."""
    series = 0.00018628906624475989
    series = series * s + 0.001901670636749514
    series = series * s + 0.013870453431054076
    series = series * s + 0.08007500307771541
    return series * s + 0.34657358308658004


@triton.jit
def exponent_of_hold(delta, A, a, hold, HOLD: tl.constexpr):
    """s = z log2(e) of z = hold delta A, and exp(z), which is a where HOLD is 1; A has log2(e) in it."""
    if HOLD == 1:
        return delta * A, a
    else:
        s = delta * (A * hold)
        return s, tl.exp2(s)


@triton.jit
def inverse_of(A, hold):
    """1 / (hold A) of an A that has log2(e) in it."""
    return 1.0 / (A * hold) * LOG2E


@triton.jit
def held(delta, A, a, hold, inverse, HOLD: tl.constexpr):
    """What takes the place of delta in Bbar = delta B: delta phi(hold delta A) = (exp(hold delta A) - 1) / (hold A),
    the exact zero-order hold of the appendix. inverse is 1 / (hold A)."""
    s, e = exponent_of_hold(delta, A, a, hold, HOLD)
    return tl.where(tl.abs(s) < _SMALL, delta * (_of_small(s) * s + 1.0), e * inverse - inverse)


@triton.jit
def held_slopes(delta, A, a, hold, inverse, of_delta, HOLD: tl.constexpr):
    """The derivatives of `held`, which is of_delta, by delta and by hold A: exp(z) and delta^2 phi'(z)."""
    s, e = exponent_of_hold(delta, A, a, hold, HOLD)
    small = delta * delta * (_of_small(s) * (s - LOG2E) + 1.0)  # phi' = phi - (phi - 1) / z
    return e, tl.where(tl.abs(s) < _SMALL, small, (delta * e - of_delta) * inverse)


@triton.jit
def closed(orders, k, rings):
    """ScanSettings.closed of direction k: columns and rows, each 0 or 1. `rings`: 1 for an axis H that is periodic, and
    2 for an axis W."""
    down = (orders >> (3 * k)) & 1
    along_H = rings & 1
    along_W = rings >> 1
    return along_H + down * (along_W - along_H), along_W + down * (along_H - along_W)
