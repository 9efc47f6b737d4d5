"""What a Triton program keeps on chip of the blocks of channels that it walks side by side.

What belongs to channels (parameters, their gradients, states between tiles) is a table [rows, BE] per block. The sides
of Triton's tensors are powers of two, the number of blocks that fit into registers is not: so four blocks make a quad
[4, rows, BE], and a bundle is a tuple of quads. A loop over the blocks picks one block's table and puts it back; that
takes a few instructions per block and tile, where the scan of the tile takes thousands.
"""
# mypy: disable-error-code="no-untyped-def,assignment"
# ruff: noqa: RUF005
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own, and a tuple grows by addition.

import triton
import triton.language as tl


@triton.jit
def zero_tables(QUADS: tl.constexpr, ROWS: tl.constexpr, BE: tl.constexpr):
    tables = ()
    for _quad in tl.static_range(QUADS):
        tables = tables + (tl.zeros([4, ROWS, BE], tl.float32),)
    return tables


@triton.jit
def load_tables(
    pointer, first_channel, end, rows, row_step, channel_step, QUADS: tl.constexpr, ROWS: tl.constexpr, BE: tl.constexpr
):  # fmt: skip
    """Channels from the first to the end of a float32 matrix with the given steps; 0 outside."""
    row = tl.arange(0, ROWS)[None, :, None]
    block = tl.arange(0, 4)[:, None, None]
    tables = ()
    for quad in tl.static_range(QUADS):
        channel = first_channel + (4 * quad + block) * BE + tl.arange(0, BE)[None, None, :]
        offset = channel * channel_step + row * row_step
        tables = tables + (tl.load(pointer + offset, mask=(row < rows) & (channel < end), other=0.0),)
    return tables


@triton.jit
def pick_block(tables, wanted, QUADS: tl.constexpr):
    """The table [rows, BE] of one block."""
    block = tl.arange(0, 4)[:, None, None]
    found = tl.sum(tl.where(block == wanted, tables[0], 0.0), axis=0)
    for quad in tl.static_range(1, QUADS):
        found += tl.sum(tl.where(4 * quad + block == wanted, tables[quad], 0.0), axis=0)
    return found


@triton.jit
def put_block(tables, wanted, value, QUADS: tl.constexpr):
    """The bundle with another table [rows, BE] for one block."""
    block = tl.arange(0, 4)[:, None, None]
    changed = ()
    for quad in tl.static_range(QUADS):
        changed = changed + (tl.where(4 * quad + block == wanted, value[None, :, :], tables[quad]),)
    return changed


@triton.jit
def add_to_block(tables, wanted, value, QUADS: tl.constexpr):
    """The bundle with `value` [rows, BE] added to the table of one block."""
    block = tl.arange(0, 4)[:, None, None]
    changed = ()
    for quad in tl.static_range(QUADS):
        changed = changed + (tl.where(4 * quad + block == wanted, tables[quad] + value[None, :, :], tables[quad]),)
    return changed
