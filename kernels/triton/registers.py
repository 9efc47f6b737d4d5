"""Axes that live in a thread's registers, taken apart and put together: none of this costs an instruction."""
# mypy: disable-error-code="no-untyped-def,assignment"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl


@triton.jit
def rows_of(z):
    """[T, S, G, BE] -> T tensors [S, G, BE] in order; T is a power of two."""
    T: tl.constexpr = z.shape[0]
    S: tl.constexpr = z.shape[1]
    G: tl.constexpr = z.shape[2]
    BE: tl.constexpr = z.shape[3]
    if T == 1:
        return (tl.reshape(z, [S, G, BE]),)
    else:
        upper, lower = tl.split(tl.permute(tl.reshape(z, [2, T // 2, S, G, BE]), [1, 2, 3, 4, 0]))
        return rows_of(upper) + rows_of(lower)


@triton.jit
def columns_of(z):
    """[T, S, G, M] -> M tensors [T, S, G] in order; M is a power of two."""
    T: tl.constexpr = z.shape[0]
    S: tl.constexpr = z.shape[1]
    G: tl.constexpr = z.shape[2]
    M: tl.constexpr = z.shape[3]
    if M == 1:
        return (tl.reshape(z, [T, S, G]),)
    else:
        first, second = tl.split(tl.permute(tl.reshape(z, [T, S, G, 2, M // 2]), [0, 1, 2, 4, 3]))
        return columns_of(first) + columns_of(second)


@triton.jit
def stacked(rows):
    """T tensors [S, G, BE] -> [T, S, G, BE] in order; T is a power of two."""
    S: tl.constexpr = rows[0].shape[0]
    G: tl.constexpr = rows[0].shape[1]
    BE: tl.constexpr = rows[0].shape[2]
    T: tl.constexpr = len(rows)
    return tl.permute(tl.reshape(_joined(rows), [S, G, BE, T]), [3, 0, 1, 2])


@triton.jit
def _joined(parts):
    if len(parts) == 1:
        return parts[0]
    else:
        pairs = ()
        for n in tl.static_range(len(parts) // 2):
            pairs = pairs + (tl.join(parts[n], parts[n + len(parts) // 2]),)
        return _joined(pairs)


@triton.jit
def scan_rows(a, b, carry):
    """h[i] = a[i] h[i-1] + b[i] along the first axis of [T, S, G, BE], from carry [S, G, BE]; h, and h of the last."""
    a_i = rows_of(a)
    b_i = rows_of(b)
    h = carry
    states = ()
    for i in tl.static_range(a.shape[0]):
        h = a_i[i] * h + b_i[i]
        states = states + (h,)
    return stacked(states), h
