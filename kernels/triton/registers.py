"""Tensors whose channels lie along the lanes and whose positions lie in registers: taken apart, stored, summed.

With one warp and BE channels, one a lane, [16, BE] is sixteen registers of every thread. Taking it apart into sixteen
tensors [BE] and back costs nothing. A field is four neighbouring floats of every lane, so that a load or store of it is
one instruction of 16 bytes a lane.
"""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.
# Triton adds tuples, and does not unpack them.

import triton
import triton.language as tl


@triton.jit
def unstack4(z, BE: tl.constexpr):
    """[4, BE] as four tensors [BE]; the first axis is in registers, so this costs nothing."""
    low, high = tl.split(tl.permute(tl.reshape(z, [2, 2, BE]), [1, 2, 0]))
    first, second = tl.split(tl.trans(low))
    third, fourth = tl.split(tl.trans(high))
    return first, second, third, fourth


@triton.jit
def unstack(z, BE: tl.constexpr):
    """[16, BE] as sixteen tensors [BE]."""
    low, high = tl.split(tl.permute(tl.reshape(z, [2, 8, BE]), [1, 2, 0]))
    first, second = tl.split(tl.permute(tl.reshape(low, [2, 4, BE]), [1, 2, 0]))
    third, fourth = tl.split(tl.permute(tl.reshape(high, [2, 4, BE]), [1, 2, 0]))
    return unstack4(first, BE) + unstack4(second, BE) + unstack4(third, BE) + unstack4(fourth, BE)


@triton.jit
def stack(values, BE: tl.constexpr):
    """Four or sixteen tensors [BE] as one, with a new first axis."""
    COUNT: tl.constexpr = len(values)
    parts = values
    for _level in tl.static_range(4 if COUNT == 16 else 2):
        halves = ()
        for v in tl.static_range(len(parts) // 2):
            halves = halves + (tl.join(parts[v], parts[v + len(parts) // 2]),)
        parts = halves
    return tl.trans(tl.reshape(parts[0], [BE, COUNT]))


@triton.jit
def load_field(pointer, BE: tl.constexpr):
    """Four tensors [BE] from four neighbouring floats of every lane; pointer [BE]."""
    field = pointer[:, None] + tl.arange(0, 4)[None, :]
    return unstack4(tl.trans(tl.load(tl.multiple_of(field, [1, 16]))), BE)


@triton.jit
def store_field(pointer, values, BE: tl.constexpr):
    field = pointer[:, None] + tl.arange(0, 4)[None, :]
    tl.store(tl.multiple_of(field, [1, 16]), tl.trans(stack(values, BE)))


@triton.jit
def rows4(pointer, BE: tl.constexpr):
    """Pointers [4, BE] to four rows of BE floats; pointer [BE]."""
    return tl.arange(0, 4)[:, None] * BE + pointer[None, :]


@triton.jit
def load_fields(pointer, fields, BE: tl.constexpr):
    """[16, BE] from four fields; fields [4, BE, 4]."""
    z = tl.load(tl.multiple_of(pointer + fields, [1, 1, 16]))
    return tl.reshape(tl.permute(z, [0, 2, 1]), [16, BE])


@triton.jit
def store_fields(pointer, fields, z, BE: tl.constexpr):
    tl.store(tl.multiple_of(pointer + fields, [1, 1, 16]), tl.permute(tl.reshape(z, [4, 4, BE]), [0, 2, 1]))


@triton.jit
def sum_over_channels(first, second, BE: tl.constexpr):
    """The sums over channels of first and second [16, BE] as one tensor [32] along the lanes.

    Splitting the axis of channels needs it in a thread's registers: the values go to the lanes, once through shared
    memory, and the sums take no shuffle.
    """
    z = tl.reshape(tl.permute(tl.join(first, second), [2, 0, 1]), [32, BE])
    for _level in tl.static_range(5 if BE == 32 else 6):
        even, odd = tl.split(tl.reshape(z, [32, z.shape[1] // 2, 2]))
        z = tl.reshape(even + odd, [32, z.shape[1] // 2])
    return tl.reshape(z, [32])
