"""The gradients of weight and bias from the sums that programs left: one launch, in a fixed order, no atomics."""
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["parts"])
def sum_parts_kernel(
    partial, dweight, dbias, parts, E: tl.constexpr, TAPS: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr
):
    """partial [parts, TAPS + 1, E] over the parts: TAPS rows to dweight [E, TAPS], the last to dbias [E]."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    here = column < (TAPS + 1) * E
    part = tl.arange(0, PARTS)[:, None]
    total = tl.zeros([PARTS, COLUMNS], tl.float32)
    for start in range(0, parts, PARTS):
        at = (start + part).to(tl.int64) * ((TAPS + 1) * E) + column[None, :]
        total += tl.load(partial + at, mask=(start + part < parts) & here[None, :], other=0.0)
    sums = tl.sum(total, 0)
    tap = column // E
    e = column % E
    tl.store(dweight + e * TAPS + tap, sums, mask=here & (tap < TAPS))
    tl.store(dbias + e, sums, mask=here & (tap == TAPS))
