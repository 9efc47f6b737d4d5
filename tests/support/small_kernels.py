"""Small Triton kernels: with faults for the race check, and as ours are for the host side."""

import triton
import triton.language as tl


@triton.jit
def neighbours(x, y, OVERLAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """A program a block of 32; with OVERLAP it writes one element of the next block as well."""
    at = tl.program_id(0) * 32 + tl.arange(0, 64)
    tl.store(y + at, tl.load(x + at), mask=tl.arange(0, 64) < 32 + OVERLAP)


@triton.jit
def in_place(x, SHIFT: tl.constexpr):  # type: ignore[no-untyped-def]
    """A program adds one to its block; with SHIFT it reads the next one's."""
    at = tl.program_id(0) * 32 + tl.arange(0, 32)
    tl.store(x + at, tl.load(x + at + SHIFT, mask=at + SHIFT < 96, other=0.0) + 1.0)


@triton.jit
def hand_over(handed, y, steps, BARRIER: tl.constexpr, WAIT: tl.constexpr):  # type: ignore[no-untyped-def]
    """A wavefront: each step, a warp takes what the warp above left in the step before, and leaves its own."""
    warp = tl.arange(0, 4)
    own = warp[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(handed + 128 + own, own.to(tl.float32))
    if BARRIER:
        tl.debug_barrier()
    for t in range(steps):
        above = tl.load(handed + (1 - t % 2) * 128 + own - 32, mask=(warp > 0)[:, None], other=0.0)
        tl.store(handed + t % 2 * 128 + own, above + 1.0)
        if WAIT:
            tl.debug_barrier()
    tl.store(y + own, tl.load(handed + (1 - steps % 2) * 128 + own))


@triton.jit
def one_slot(handed, BARRIER: tl.constexpr):  # type: ignore[no-untyped-def]
    """A warp takes the slot of the warp above, then writes its own: the one below may not have taken it yet."""
    warp = tl.arange(0, 4)
    own = warp[:, None] * 32 + tl.arange(0, 32)[None, :]
    above = tl.load(handed + own - 32, mask=(warp > 0)[:, None], other=0.0)
    if BARRIER:
        tl.debug_barrier()
    tl.store(handed + own, above + 1.0)


@triton.jit
def own_scratch(scratch, y, steps):  # type: ignore[no-untyped-def]
    """What a thread leaves for itself from step to step needs no barrier."""
    own = tl.arange(0, 4)[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(scratch + own, own.to(tl.float32))
    for _ in range(steps):
        tl.store(scratch + own, tl.load(scratch + own) * 2.0)
    tl.store(y + own, tl.load(scratch + own))


@triton.jit
def few(scratch, y, BARRIER: tl.constexpr):  # type: ignore[no-untyped-def]
    """Eight elements in a program of 32 threads: one thread stores each of them, four load it."""
    at = tl.arange(0, 8)
    tl.store(scratch + at, at.to(tl.float32))
    if BARRIER:
        tl.debug_barrier()
    tl.store(y + at, tl.load(scratch + at))


@triton.jit
def one_address(y, DIFFERENT: tl.constexpr):  # type: ignore[no-untyped-def]
    """All threads of a program store to one address."""
    lane = tl.arange(0, 32)
    tl.store(y + lane * 0, (lane * DIFFERENT).to(tl.float32))


@triton.jit
def counter(y):  # type: ignore[no-untyped-def]
    tl.atomic_add(y + tl.program_id(0), 1.0)


@triton.jit
def last_one(y):  # type: ignore[no-untyped-def]
    tl.store(y, tl.program_id(0).to(tl.float32))


@triton.jit
def busy(x, y, steps):  # type: ignore[no-untyped-def]
    """64 x 64 elements loaded and stored in each step."""
    own = tl.program_id(0) * 4096 + tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    for _ in range(steps):
        tl.store(y + own, tl.load(x + own) + 1.0)


@triton.jit(do_not_specialize_on_alignment=["scratch", "y"])
def turned(scratch, y):  # type: ignore[no-untyped-def]
    """Stored row by row, loaded as the transpose: the compiler lays lanes along what is contiguous in both."""
    long, short = tl.arange(0, 32), tl.arange(0, 4)
    tl.store(scratch + short[:, None] * 32 + long[None, :], (short[:, None] + long[None, :]).to(tl.float32))
    own = short[None, :] * 32 + long[:, None]
    tl.store(y + own, tl.load(scratch + own))


@triton.jit(do_not_specialize=["size"], do_not_specialize_on_alignment=["x"])
def scaled(x, size, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """A kernel as ours are: another size compiles nothing new."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < size * BLOCK, other=0.0) * factor, mask=at < size * BLOCK)


@triton.jit
def specialised(x, size):  # type: ignore[no-untyped-def]
    """Triton's default: compiled again for sizes of 1 and for multiples of 16."""
    at = tl.arange(0, 64)
    tl.store(x + at, 0.0, mask=at < size)
