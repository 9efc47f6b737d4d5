"""Sums in a fixed order of what the programs of a scan leave: y over directions, and everything of the backward.

All directions of a call run at once, so each has a y and a dx of its own. A program of a backward sees one block of
channels and one part of the grid: dB, dC and a low-rank ddt are still to be added over blocks, parameters over parts.
"""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.arithmetic import turned

ELEMENTS = 1024  # of y or dx, of one program
SLOTS = 128  # positions of one program, one a thread
CHANNELS = 64  # of a parameter, of one program
WARPS = 4


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def direction_programs(elements: int) -> int:
    """Programs of `sum_directions` for y with that many elements."""
    return cdiv(elements, ELEMENTS)


def gradient_programs(
    directions: int, batch: int, points: int, E: int, N: int, rank: int, slots: int
) -> tuple[int, int, int]:
    """Of `sum_gradients`: its first program for positions, its first for dx, and how many there are in all.
    rank is 0 for a full dt."""
    of_parameters = directions * (2 * N + 2 + rank) * cdiv(E, CHANNELS)
    of_positions = directions * batch * cdiv(slots, SLOTS)
    first_dx = of_parameters + of_positions
    return of_parameters, first_dx, first_dx + direction_programs(batch * points * E)


@triton.jit
def add_directions(parts, target, program, elements, DIRECTIONS: tl.constexpr, ELEMENTS: tl.constexpr):
    """target = parts[0] + parts[1] + ... of one program."""
    here = tl.arange(0, ELEMENTS)
    start = program.to(tl.int64) * ELEMENTS
    inside = here < tl.minimum(elements - start, ELEMENTS).to(tl.int32)
    part = parts + start
    total = tl.load(part + here, mask=inside)
    for _k in tl.static_range(1, DIRECTIONS):
        part += elements
        total += tl.load(part + here, mask=inside)
    tl.store(target + start + here, total, mask=inside)


@triton.jit(
    do_not_specialize=["samples", "points", "E"], do_not_specialize_on_alignment=["y_part", "y"]
)  # fmt: skip
def sum_directions(y_part, y, samples, points, E, DIRECTIONS: tl.constexpr, ELEMENTS: tl.constexpr):
    """y [batch, points, E] in its own dtype from y_part [K, batch, points, E]."""
    elements = samples.to(tl.int64) * points * E
    add_directions(y_part, y, tl.program_id(0), elements, DIRECTIONS, ELEMENTS)


@triton.jit
def add_blocks(source, block_step, wanted, BLOCKS: tl.constexpr):
    """One row of over_channels, added over blocks of channels."""
    total = tl.load(source, mask=wanted)
    if BLOCKS <= 8:
        for block in tl.static_range(1, BLOCKS):
            total += tl.load(source + block * block_step, mask=wanted)
    else:
        for block in range(1, BLOCKS):
            total += tl.load(source + block * block_step, mask=wanted)
    return total


@triton.jit
def write_rows(
    source, block_step, row_step, target, inside, count,
    BLOCKS: tl.constexpr, QUADS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """count rows from source, row_step apart, to neighbouring elements of target [SLOTS]; QUADS: four in one store."""
    if QUADS:
        BYTES: tl.constexpr = target.dtype.element_ty.primitive_bitwidth // 2
        for _quad in range(count // 4):
            first = add_blocks(source, block_step, inside, BLOCKS)
            second = add_blocks(source + row_step, block_step, inside, BLOCKS)
            third = add_blocks(source + 2 * row_step, block_step, inside, BLOCKS)
            fourth = add_blocks(source + 3 * row_step, block_step, inside, BLOCKS)
            four = tl.reshape(tl.join(tl.join(first, third), tl.join(second, fourth)), [SLOTS, 4])
            at = tl.multiple_of(target[:, None] + tl.arange(0, 4)[None, :], [1, BYTES])
            tl.store(at, four, mask=inside[:, None])
            source += 4 * row_step
            target += 4
    else:
        for _row in range(count):
            tl.store(target, add_blocks(source, block_step, inside, BLOCKS), mask=inside)
            source += row_step
            target += 1


@triton.jit(
    do_not_specialize=[
        "orders", "batch", "H", "W", "E", "rank", "parts", "slots", "first_position", "first_dx", "B_row", "dt_row",
    ],
    do_not_specialize_on_alignment=[
        "dx_part", "over_channels", "of_parameters", "dx", "dB", "dC", "ddt", "dA", "dR", "dD", "dbias", "dweight",
    ],
)  # fmt: skip
def sum_gradients(
    dx_part, over_channels, of_parameters, dx, dB, dC, ddt, dA, dR, dD, dbias, dweight,
    orders, batch, H, W, E, rank, parts, slots, first_position, first_dx, B_row, dt_row,
    DIRECTIONS: tl.constexpr, BLOCKS: tl.constexpr, LOW_RANK: tl.constexpr, N: tl.constexpr, NEEDS_R: tl.constexpr,
    STRIP: tl.constexpr, SIDE: tl.constexpr, QUADS: tl.constexpr,
    ELEMENTS: tl.constexpr, SLOTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """All gradients of a call but the full ddt: dx [batch, points, E], dB, dC [batch, points, K, N] in rows B_row
    apart, ddt [batch, points, K, rank] in rows dt_row apart, dA, dR [K, E, N], dD, dbias [K, E], dweight [K, E, rank].

    STRIP x SIDE is the tile of a 2d scan; its slots are numbered tile by tile, and over_channels has sixteen of them
    at a time in all rows. STRIP 0: a slot is a step of a 1d scan, and over_channels is [K, batch, blocks, rows, slots].
    QUADS: dstates of dB and dC come in fours, and their rows are aligned so. The programs are those of
    `gradient_programs`; rank is 0 and LOW_RANK False for a full dt.
    """
    program = tl.program_id(0)
    points = H * W
    if program >= first_dx:
        elements = batch.to(tl.int64) * points * E
        add_directions(dx_part, dx, program - first_dx, elements, DIRECTIONS, ELEMENTS)
    elif program >= first_position:
        pieces = (slots + SLOTS - 1) // SLOTS
        kb = (program - first_position) // pieces
        slot = (program - first_position - kb * pieces) * SLOTS + tl.arange(0, SLOTS)
        k = kb // batch
        b = kb - k * batch
        corner, step_i, step_j, rows, columns = turned(orders, k, H, W)
        if STRIP == 0:
            i = slot // columns
            j = slot - i * columns
        else:
            across = (columns + SIDE - 1) // SIDE
            tile = slot // (STRIP * SIDE)
            p = slot % (STRIP * SIDE)
            ti = tile // across
            i = ti * STRIP + p // SIDE
            j = (tile - ti * across) * SIDE + p % SIDE
        inside = (i < rows) & (j < columns) & (slot < slots)
        # Scalar 64-bit steps to the sample, so that offsets inside are short.
        row = (corner + i * step_i + j * step_j) * DIRECTIONS + k
        sample = b.to(tl.int64) * (points * DIRECTIONS)
        block_step = (2 * N + rank).to(tl.int64) * slots
        source = over_channels + kb.to(tl.int64) * (BLOCKS * block_step)
        if STRIP == 0:
            source += slot
            row_step = slots
        else:
            source += slot // 16 * ((2 * N + rank) * 16) + slot % 16
            row_step = slots * 0 + 16
        of_B = row * B_row
        write_rows(source, block_step, row_step, dB + sample * B_row + of_B, inside, N, BLOCKS, QUADS, SLOTS)
        source += N * row_step
        write_rows(source, block_step, row_step, dC + sample * B_row + of_B, inside, N, BLOCKS, QUADS, SLOTS)
        if LOW_RANK:
            source += N * row_step
            ddt += sample * dt_row
            write_rows(source, block_step, row_step, ddt + row * dt_row, inside, rank, BLOCKS, False, SLOTS)
    else:
        kinds = 2 * N + 2 + rank
        blocks_of_channels = (E + CHANNELS - 1) // CHANNELS
        k_row = program // blocks_of_channels
        e = (program - k_row * blocks_of_channels) * CHANNELS + tl.arange(0, CHANNELS)
        k = k_row // kinds
        kind = k_row - k * kinds
        if NEEDS_R | (kind < N) | (kind >= 2 * N):
            part = tl.arange(0, 16)
            of_row = of_parameters + (k.to(tl.int64) * parts * kinds + kind) * E
            total = tl.zeros([CHANNELS], tl.float32)
            at = part[:, None] * (kinds * E) + e[None, :]
            for start in range(0, parts, 16):
                wanted = (start + part < parts)[:, None] & (e < E)[None, :]
                total += tl.sum(tl.load(of_row + at, mask=wanted, other=0.0), axis=0)
                of_row += 16 * (kinds * E)
            channel = k * E + e
            if kind < N:
                tl.store(dA + channel * N + kind, total, mask=e < E)
            elif kind < 2 * N:
                tl.store(dR + channel * N + kind - N, total, mask=e < E)
            elif kind == 2 * N:
                tl.store(dD + channel, total, mask=e < E)
            elif kind == 2 * N + 1:
                tl.store(dbias + channel, total, mask=e < E)
            else:
                tl.store(dweight + channel * rank + kind - 2 * N - 2, total, mask=e < E)
