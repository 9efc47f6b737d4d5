"""Tile and block sizes of the Triton kernels: as large as the registers allow without spilling, and as many chunks of
the traversal as it takes to fill a GPU.

A block of channels reads B, C and a low-rank dt again, so wide blocks save traffic; a tile of a grid has carries along
its edges, so tall tiles (and in the backward large ones) save traffic too. The
audit's compilation shows what does not spill.
"""

from typing import NamedTuple

NOMINAL_MULTIPROCESSORS = 108  # an A100; for where there is no GPU
SEQUENCE_TILE = 32  # steps between the states that a 1d forward keeps; fixed, since forward and backward must agree
BUNDLED_ROWS = 12 * 144  # of sixteen channels, on chip: the bundle of the Navier-Stokes recipe, 110 registers a thread
SHORTEST_CHUNK = 8  # tiles of a sequence: each chunk reads the parameters again


class Blocks(NamedTuple):
    """A tile of tile_h x tile_w positions (1d: tile_w steps of the sequence) and the channels of a program."""

    tile_h: int
    tile_w: int
    channels: int
    threads: int = 256
    chunks: int = 1  # of the traversal, at most
    sweep_channels: int = 0  # of the sweeps of a backward, which hold less; 0: as the others
    sweep_positions: int = 0  # of a tile of these sweeps in 2d; 0: as the others
    bundle: int = 1  # blocks of channels that a program of the backward walks in every tile

    @property
    def positions(self) -> int:
        return self.tile_h * self.tile_w

    @property
    def program_channels(self) -> int:
        return self.channels * self.bundle

    @property
    def for_sweeps(self) -> "Blocks":
        return self._replace(channels=self.sweep_channels or self.channels)


def forward_blocks(
    batch: int, height: int, width: int, channels: int, rank: int, kind: str, processors: int, element_bytes: int = 4,
    dstate: int = 16,
) -> Blocks:  # fmt: skip
    if kind == "1d":
        widths = (128, 64, 32, 16) if rank <= 16 or element_bytes == 4 else (64, 32, 16)
        blocks = _fitting([Blocks(1, SEQUENCE_TILE, width) for width in widths], channels)
        return _in_chunks(blocks, batch, channels, -(-height * width // SEQUENCE_TILE) // SHORTEST_CHUNK, processors)
    # Tall tiles: carries along the rows stay on chip, and those along the columns leave it once in tile_h rows.
    tall = max(4, min(16, 256 // _power_of_2(dstate)))
    choices = [Blocks(tall, 2, 64), Blocks(tall, 4, 32), Blocks(tall, 8, 16)]
    blocks = _fitting(choices, channels)
    if batch * -(-channels // blocks.channels) < processors:
        blocks = _fitting(choices[1:], channels)
    return _in_chunks(blocks, batch, channels, -(-max(height, width) // blocks.tile_h), processors)


def backward_blocks(
    batch: int, height: int, width: int, channels: int, rank: int, kind: str, processors: int, element_bytes: int = 4,
    dstate: int = 16,
) -> Blocks:  # fmt: skip
    if kind == "1d":
        blocks = Blocks(1, SEQUENCE_TILE, 16, sweep_channels=128 if channels > 64 else 0)
        # What a block keeps on chip between tiles: five tables of dstates, two of ranks (triton_backward).
        rows = 5 * _power_of_2(dstate) + 2 * 16 * -(-rank // 16)
        at_most = 4 * max(1, min(4, BUNDLED_ROWS // (4 * rows)))
        count = -(-channels // blocks.channels)
        blocks = blocks._replace(bundle=-(-count // -(-count // at_most)))
        return _in_chunks(blocks, batch, channels, -(-height * width // SEQUENCE_TILE) // SHORTEST_CHUNK, processors)
    # Sums of ddt over the bundle take registers by rank, so a large one leaves room for half a tile only.
    blocks = Blocks(16, 8, 8) if rank <= 16 else Blocks(8, 8, 16)
    blocks = blocks._replace(bundle=min(128, channels + blocks.channels - 1) // blocks.channels)
    # The sweeps hold [N, tile_h, channels] on chip.
    wide = next(c for c in (64, 32, 16) if c == 16 or (c < 2 * channels and c * _power_of_2(dstate) <= 1024))
    blocks = blocks._replace(sweep_channels=wide, sweep_positions=2048 // wide)
    # With one chunk every launch is a diagonal of tiles, which has one tile at the corners.
    fills = batch * -(-channels // blocks.program_channels) >= processors
    return blocks._replace(chunks=1 if fills else max(height, width))


def warps(threads: int, warp_size: int) -> int:
    """Warps of a program. With warps of 64 (AMD) always four, that is 256 threads."""
    return 4 if warp_size == 64 else threads // 32


def _power_of_2(number: int) -> int:
    """The next, as the sides of Triton's tensors are."""
    return 1 << (number - 1).bit_length()


def _fitting(choices: list[Blocks], channels: int) -> Blocks:
    """The first that is not twice as wide as the channels."""
    return next((blocks for blocks in choices if blocks.channels < 2 * channels), choices[-1])


def _in_chunks(blocks: Blocks, batch: int, channels: int, most: int, processors: int) -> Blocks:
    """One chunk if that gives every multiprocessor a program, else enough for that, or as many as possible."""
    sequential = blocks.tile_h == 1  # a grid's backward has a program for every tile, so its sweeps are what counts
    widest = max(blocks.program_channels, blocks.sweep_channels) if sequential else blocks.for_sweeps.channels
    programs = batch * -(-channels // widest)
    return blocks._replace(chunks=max(1, min(most, -(-processors // programs))))
