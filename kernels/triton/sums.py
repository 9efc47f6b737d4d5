"""Sums in a fixed order of what the programs of a scan leave: y over directions, and everything of the backward.

All directions of a call run at once, so each has a y and a dx of its own. A program of a backward sees one block of
channels and one part of the grid: dB, dC and a low-rank ddt are still to be added over blocks, parameters over parts.
"""
# mypy: disable-error-code="no-untyped-def"
# In a Triton kernel an annotation other than tl.constexpr has a meaning of its own.

import triton
import triton.language as tl

from geomano_hpc.kernels.triton.arithmetic import turned
from geomano_hpc.kernels.triton.sequence_forward import offsets_of

ELEMENTS = 1024  # of y or dx, of one program
SLOTS = 64  # positions of one program
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
def add_directions(parts, target, program, elements, directions, FOURS: tl.constexpr, ELEMENTS: tl.constexpr):
    """target = parts[0] + parts[1] + ... of one program. FOURS: four elements are one load."""
    if FOURS:
        elements = tl.multiple_of(elements, 4)
    here = tl.arange(0, ELEMENTS)
    start = program.to(tl.int64) * ELEMENTS
    inside = here < tl.minimum(elements - start, ELEMENTS).to(tl.int32)
    if FOURS:
        inside = tl.max_constancy(inside, [4])
    parts += start
    total = tl.load(parts + here, mask=inside, other=0.0)
    for k in range(1, directions):
        total += tl.load(parts + k * elements + here, mask=inside, other=0.0)
    tl.store(target + start + here, total, mask=inside)


@triton.jit(
    do_not_specialize=["samples", "points", "E", "directions"]
)  # fmt: skip
def sum_directions(y_part, y, samples, points, E, directions, FOURS: tl.constexpr, ELEMENTS: tl.constexpr):
    """y [batch, points, E] in its own dtype from y_part [K, batch, points, E]. FOURS: E is a multiple of four."""
    elements = samples.to(tl.int64) * points * E
    add_directions(y_part, y, tl.program_id(0), elements, directions, FOURS, ELEMENTS)


@triton.jit
def add_blocks(source, blocks, block_step, count, slot, slots, target, at_point, inside, SLOTS: tl.constexpr):
    """`count` rows of over_channels, added over blocks of channels, to target[at_point + row]."""
    n = tl.arange(0, 16)
    here = n[:, None] * slots + slot[None, :]
    for start in range(0, count, 16):
        wanted = (start + n < count)[:, None] & (slot < slots)[None, :]
        at = source + start * slots
        total = tl.load(at + here, mask=wanted, other=0.0)
        for _block in range(1, blocks):
            at += block_step
            total += tl.load(at + here, mask=wanted, other=0.0)
        written = inside[:, None] & (start + n < count)[None, :]
        tl.store(target + start + at_point[:, None] + n[None, :], tl.trans(total), mask=written)


@triton.jit(
    do_not_specialize=[
        "orders", "directions", "batch", "H", "W", "E", "N", "rank", "blocks", "parts", "slots", "first_position",
        "first_dx", "B_row", "dt_row",
    ],
    do_not_specialize_on_alignment=[
        "over_channels", "of_parameters", "dB", "dC", "ddt", "dA", "dR", "dD", "dbias", "dweight",
    ],
)  # fmt: skip
def sum_gradients(
    dx_part, over_channels, of_parameters, dx, dB, dC, ddt, dA, dR, dD, dbias, dweight,
    orders, directions, batch, H, W, E, N, rank, blocks, parts, slots, first_position, first_dx, B_row, dt_row,
    LOW_RANK: tl.constexpr, NEEDS_R: tl.constexpr, STRIP: tl.constexpr, SIDE: tl.constexpr,
    FOURS: tl.constexpr, ELEMENTS: tl.constexpr, SLOTS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """All gradients of a call but the full ddt: dx [batch, points, E], dB, dC [batch, points, K, N] in rows B_row apart,
    ddt [batch, points, K, rank] in rows dt_row apart, dA, dR [K, E, N], dD, dbias [K, E], dweight [K, E, rank].

    STRIP x SIDE is the tile of a 2d scan, whose slots are numbered tile by tile; STRIP 0: slots are the traversal of a
    1d scan. The programs are those of `gradient_programs`; rank is 0 and LOW_RANK False for a full dt.
    """
    program = tl.program_id(0)
    points = H * W
    if program >= first_dx:
        elements = batch.to(tl.int64) * points * E
        add_directions(dx_part, dx, program - first_dx, elements, directions, FOURS, ELEMENTS)
    elif program >= first_position:
        pieces = (slots + SLOTS - 1) // SLOTS
        kb = (program - first_position) // pieces
        start = (program - first_position - kb * pieces) * SLOTS
        p = tl.arange(0, SLOTS)
        slot = start + p
        k = kb // batch
        b = kb - k * batch
        corner, step_i, step_j, rows, columns = turned(orders, k, H, W)
        if STRIP == 0:
            point = offsets_of(start, p, corner, step_i, step_j, columns, 1, SLOTS)
            inside = slot < points
        else:
            # One division for the program: its tiles follow each other, and may begin a new row of tiles.
            TILE: tl.constexpr = STRIP * SIDE
            across = (tl.maximum(H, W) + SIDE - 1) // SIDE
            first = start // TILE
            ti = first // across + p * 0
            tj = first % across + p // TILE
            for _wrap in tl.static_range(SLOTS // TILE):
                ti += (tj >= across).to(tl.int32)
                tj -= (tj >= across).to(tl.int32) * across
            i = ti * STRIP + p % TILE // SIDE
            j = tj * SIDE + p % SIDE
            point = corner + i * step_i + j * step_j
            inside = (i < rows) & (j < columns) & (slot < slots)
        # Scalar 64-bit steps to the sample, so that offsets inside are short.
        row = point * directions + k
        sample = b.to(tl.int64) * (points * directions)
        block_step = (2 * N + rank) * slots
        source = over_channels + kb.to(tl.int64) * blocks * block_step
        add_blocks(source, blocks, block_step, N, slot, slots, dB + sample * B_row, row * B_row, inside, SLOTS)
        source += N * slots
        add_blocks(source, blocks, block_step, N, slot, slots, dC + sample * B_row, row * B_row, inside, SLOTS)
        if LOW_RANK:
            source += N * slots
            ddt += sample * dt_row
            add_blocks(source, blocks, block_step, rank, slot, slots, ddt, row * dt_row, inside, SLOTS)
    else:
        kinds = 2 * N + 2 + rank
        blocks_of_channels = (E + CHANNELS - 1) // CHANNELS
        k_row = program // blocks_of_channels
        e = (program - k_row * blocks_of_channels) * CHANNELS + tl.arange(0, CHANNELS)
        k = k_row // kinds
        kind = k_row - k * kinds
        if NEEDS_R | (kind < N) | (kind >= 2 * N):
            part = tl.arange(0, 16)
            source = of_parameters + (k.to(tl.int64) * parts * kinds + kind) * E
            here = part[:, None] * (kinds * E) + e[None, :]
            total = tl.zeros([16, CHANNELS], tl.float32)
            for start in range(0, parts, 16):
                wanted = (start + part < parts)[:, None] & (e < E)[None, :]
                total += tl.load(source + here, mask=wanted, other=0.0)
                source += 16 * kinds * E
            total = tl.sum(total, axis=0)
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
