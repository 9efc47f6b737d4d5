"""Tile and block sizes of the Triton kernels: as large as the registers allow without spilling, and as small as it
takes to give every multiprocessor a program.

A block of channels reads B, C and a low-rank dt again, so wide blocks save traffic; one program walks the whole grid
of one sample and block, so at a small batch narrow blocks are what fills the GPU. `triton_compile` shows that the sizes
which the recipes get on a GPU of 108 multiprocessors do not spill.
"""

from typing import NamedTuple

NOMINAL_MULTIPROCESSORS = 108  # an A100; for what must not depend on the GPU at hand


class Blocks(NamedTuple):
    """A tile of tile_h x tile_w positions (1d: tile_w steps of the sequence) and the channels of a program."""

    tile_h: int
    tile_w: int
    channels: int
    threads: int = 256

    @property
    def positions(self) -> int:
        return self.tile_h * self.tile_w


def sequence_tile(batch: int, channels: int) -> int:
    """Steps between the states that a 1d forward keeps; from shapes alone, since forward and backward must agree."""
    return 32 if batch * channels >= 64 * NOMINAL_MULTIPROCESSORS else 64


def forward_blocks(batch: int, channels: int, rank: int, kind: str, multiprocessors: int) -> Blocks:
    if kind == "1d":
        tile = sequence_tile(batch, channels)
        widths = (128, 64, 32, 16) if tile == 32 else (64, 32, 16)
        choices = [Blocks(1, tile, width, threads=_threads(tile * width, rank)) for width in widths]
    else:
        choices = [Blocks(8, 8, 64), Blocks(8, 8, 32), Blocks(16, 16, 16)]
        if rank > 16:
            choices.insert(0, Blocks(4, 8, 128))
    return _widest_that_fills(choices, batch, channels, multiprocessors)


def backward_blocks(batch: int, channels: int, rank: int, kind: str, multiprocessors: int) -> Blocks:
    if kind == "1d":
        tile = sequence_tile(batch, channels)
        widths = (64, 32, 16) if rank <= 16 and tile == 32 else (32, 16)
        choices = [Blocks(1, tile, width, threads=_threads(tile * width, rank)) for width in widths]
    else:
        choices = [Blocks(4, 8, 32), Blocks(4, 16, 16) if rank <= 16 else Blocks(4, 8, 16)]
    return _widest_that_fills(choices, batch, channels, multiprocessors)


def warps(threads: int, warp_size: int) -> int:
    """Warps of a program. With warps of 64 (AMD) always four, that is 256 threads: `_threads` is about ptxas."""
    return 4 if warp_size == 64 else threads // 32


def _threads(elements: int, rank: int) -> int:
    """256, except where ptxas would rather spill a few bytes than use the registers that so few threads leave it."""
    return 128 if elements <= 1024 and rank == 0 else 256


def _widest_that_fills(choices: list[Blocks], batch: int, channels: int, multiprocessors: int) -> Blocks:
    """The first choice that gives every multiprocessor a program, else the last; no wider than the channels."""
    fitting = [blocks for blocks in choices if blocks.channels < 2 * channels] or choices[-1:]
    for blocks in fitting:
        if batch * -(-channels // blocks.channels) >= multiprocessors:
            return blocks
    return fitting[-1]
