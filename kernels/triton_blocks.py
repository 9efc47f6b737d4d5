"""Tile and block sizes of the Triton kernels."""
from typing import NamedTuple


class Blocks(NamedTuple):
    tile_h: int
    tile_w: int
    channels: int
    num_warps: int

    @property
    def positions(self) -> int:
        return self.tile_h * self.tile_w


def sequence_tile(batch: int, channels: int) -> int:
    return 32


def forward_blocks(batch: int, channels: int, rank: int, itemsize: int, kind: str, multiprocessors: int) -> Blocks:
    return Blocks(8, 8, 64, 8) if kind == "2d" else Blocks(1, 32, 64, 8)


def backward_blocks(batch: int, channels: int, rank: int, itemsize: int, kind: str, multiprocessors: int) -> Blocks:
    return Blocks(8, 8, 32, 8) if kind == "2d" else Blocks(1, 32, 64, 8)
