"""The states at which chunks of a traversal start, from what a sweep over each of them from zero has left.

A small batch does not fill a GPU with one program per sample and block of channels. So the traversal is cut into chunks
that are scanned at the same time, twice: a sweep from zero leaves the state at the end of each chunk, this kernel
composes them, and the second pass starts from the right states. A chunk maps a state h to exp(A sum of delta) h + (its
end from zero): per channel and dstate, in 2d per column as well, since g of Eq. (2D GeoMamba-SSM) stays in its row.
"""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.tiles import LOG2E, load_parameters


@triton.jit(do_not_specialize=["chunks"])
def combine_kernel(
    A, ends, span, entries,
    E, N, columns, blocks, chunks, end_slots, end_slot, entry_slots,
    BE: tl.constexpr, N_BLOCK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """entries of all chunks of one sample, a few columns and a block of channels, one chunk after the other.

    ends [B, chunks, end_slots, N, columns, E], a chunk's end being in end_slot; entries [B, chunks, entry_slots, N,
    columns, E], a chunk's start being in slot 0; both may be the same tensor. span [B, chunks, columns, E].
    """
    program = tl.program_id(0)
    groups = tl.cdiv(columns, COLUMNS)
    first_channel = (program % blocks).to(tl.int64) * BE
    first_column = (program // blocks) % groups * COLUMNS
    b = (program // (blocks * groups)).to(tl.int64)
    channel = tl.arange(0, BE)
    is_channel = first_channel + channel < E
    dstate = tl.arange(0, N_BLOCK)
    is_state = (dstate[:, None] < N) & is_channel[None, :]
    A_ne = load_parameters(A + first_channel * N, channel, is_channel, dstate, N) * LOG2E
    for column in range(first_column, tl.minimum(first_column + COLUMNS, columns)):
        offset = (dstate[:, None] * columns + column) * E + channel[None, :]
        state = tl.zeros([N_BLOCK, BE], tl.float32)
        for chunk in range(chunks):
            part = b * chunks + chunk
            end_pointer = ends + (part * end_slots + end_slot) * N * columns * E + first_channel + offset
            end = tl.load(end_pointer, mask=is_state, other=0.0)
            span_pointer = span + (part * columns + column) * E + first_channel + channel
            span_e = tl.load(span_pointer, mask=is_channel, other=0.0)
            entry_pointer = entries + part * entry_slots * N * columns * E + first_channel + offset
            tl.store(entry_pointer, state, mask=is_state)
            state = tl.exp2(A_ne * span_e[None, :]) * state + end
