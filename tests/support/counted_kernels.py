"""Small Triton kernels whose loads, stores and exponentials are easy to count by hand."""
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows", "E", "first_kind"], do_not_specialize_on_alignment=["x", "y"])
def branching(x, y, rows, E, first_kind, BE: tl.constexpr):
    """The first programs sum `rows` rows, the others four."""
    program = tl.program_id(0)
    e = program * BE + tl.arange(0, BE)
    if program < first_kind:
        total = tl.zeros([BE], tl.float32)
        for i in range(rows):
            total += tl.load(x + i * E + e)
        tl.store(y + e, total)
    else:
        total = tl.zeros([BE], tl.float32)
        for i in range(4):
            total += tl.load(x + i * E + e) * 3.0
        tl.store(y + 2 * e, total)


@triton.jit
def triangle(x, y, first, BE: tl.constexpr, P: tl.constexpr):
    """Program p has p + 1 rounds, and round n has n rounds inside."""
    e = tl.arange(0, BE)
    p = tl.arange(0, P)
    for n in range(tl.program_id(0) + first):
        total = tl.zeros([P, BE], tl.float32)
        for i in range(n):
            total += tl.exp2(tl.load(x + i * BE + p[:, None] + e[None, :]))
        tl.store(y + p[:, None] + e[None, :], total)


@triton.jit
def added(a, b):
    return a + b


@triton.jit(do_not_specialize_on_alignment=["x", "y"])
def scanning(x, y, P: tl.constexpr, BE: tl.constexpr):
    at = tl.arange(0, P)[:, None] * BE + tl.arange(0, BE)[None, :]
    tl.store(y + at, tl.associative_scan(tl.load(x + at), 0, added))
