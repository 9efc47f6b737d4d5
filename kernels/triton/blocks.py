"""How the Triton kernels divide a scan: channels and dstates of a warp, tiles, strips, and chunks to fill a GPU.

Nothing here depends on the size of the grid or the batch except how many programs there are: a grid of another size
compiles nothing new.
"""

from typing import NamedTuple

NOMINAL_MULTIPROCESSORS = 108  # an A100; for where there is no GPU
SCHEDULERS = 4  # of a multiprocessor
MOST_CHUNKS = 64  # a chunk composes what it starts from out of all before it


class Blocks(NamedTuple):
    """Sizes of the kernels of a scan. A tile is of positions; strips are the warps of a wavefront over a grid."""

    lanes: int = 32  # of a warp; 64 on AMD's CDNA
    forward_tile: int = 32  # steps of a sequence
    backward_tile: int = 8  # steps between the states that a 1d forward keeps
    backward_channels: int = 64  # of a program of the 1d backward, at most
    ranks: int = 4  # of a low-rank dt that the 1d backward takes at a time
    sweep_registers: int = 160  # of a thread in the sweeps of a sequence; 0: as the compiler likes
    strip_rows: int = 8  # of a wavefront's warp
    strips: int = 4  # warps of a wavefront
    part: int = 4  # columns of a tile of the 2d backward, whose strips are those of the wavefront
    chunks: int | None = None  # of a sequence, and segments of a strip; None: as many as fill the GPU


def blocks_for(lanes: int, amd: bool) -> Blocks:
    """The sizes that do not spill: on NVIDIA, on AMD with warps of 64 lanes (CDNA) and of 32 (RDNA)."""
    if not amd:
        return Blocks(lanes)
    if lanes == 64:
        return Blocks(lanes, sweep_registers=0)
    return Blocks(lanes, sweep_registers=0, backward_channels=32, ranks=2, strip_rows=4)


class Wave(NamedTuple):
    """A warp of a wavefront: G groups of M dstates x channels."""

    groups: int
    dstates: int
    channels: int


def wave(dstate: int, lanes: int) -> Wave:
    """Up to four dstates a thread, so that a strip's states stay in registers."""
    dstates = min(4, power_of_2(dstate))
    groups = power_of_2(-(-dstate // dstates))
    return Wave(groups, dstates, max(1, lanes // groups))


def chunk_count(
    programs: int, length: int, schedulers: int, *, again: float = 0.0, each: float = 0.0, composed: float = 0.0
) -> int:
    """Into how many chunks a traversal of `length` tiles is cut, where each chunk adds `programs` one-warp programs.

    The time of the busiest scheduler, in tiles: how many programs it gets, at least two of which hide each other's
    latency, times the tiles of a chunk, what `each` chunk costs, and that it is `composed` of all others. Chunks also
    cost a sweep, `again` of the work, so a batch that fills the GPU by itself has one.
    """

    def cost(chunks: int) -> float:
        busiest = max(2, -(-programs * chunks // schedulers))
        tiles = -(-length // chunks) + each + composed * (chunks - 1)
        return busiest * tiles * (1.0 if chunks == 1 else 1.0 + again)

    return min(range(1, min(length, MOST_CHUNKS) + 1), key=cost)


def power_of_2(number: int) -> int:
    """The next, as the sides of Triton's tensors are."""
    return 1 << max(0, number - 1).bit_length()
