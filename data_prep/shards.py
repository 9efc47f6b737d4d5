"""Shards of the store's arrays: how many there are, and how one is written, sample by sample.

A shard file is what Zarr's codec `sharding_indexed` specifies with its index at the end: the chunks behind each other,
then for each of them its offset and its number of bytes (uint64, little-endian), then the CRC32C of that index. A chunk
is one sample: float32, zstd, and the CRC32C of the compressed bytes. It is written here and not by zarr-python, which
would hold a shard in memory, and leave chunks of zeros out.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import zarr
from numcodecs.zstd import Zstd
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec

from geomano_hpc.atomic import replacing
from geomano_hpc.data_prep.conversion.axes import SPACE
from geomano_hpc.data_prep.store import FRAMES

SHARD_BYTES = 32 << 20  # of float32, before compression
MOST_SHARDS = 40  # of an array, so that a store of any size has fewer than 100 files
ZSTD_LEVEL = 1  # on Darcy at 421 x 421, level 3 gives the same size to 0.1 %


@dataclass(frozen=True)
class Shard:
    """Samples `start` to `stop` of one array in one file."""

    array: str
    number: int
    start: int
    stop: int
    file: str  # relative to the store


def samples_per_shard(shape: tuple[int, ...]) -> int:
    in_bytes = max(1, SHARD_BYTES // (4 * int(np.prod(shape[1:]))))
    return min(shape[0], max(in_bytes, -(-shape[0] // MOST_SHARDS)))


def shards_of(shapes: dict[str, tuple[int, ...]]) -> list[Shard]:
    found = []
    for array, shape in shapes.items():
        step = samples_per_shard(shape)
        for number, start in enumerate(range(0, shape[0], step)):
            stop = min(start + step, shape[0])
            found.append(Shard(array, number, start, stop, shard_file(array, number, len(shape))))
    return found


def shard_file(array: str, number: int, axes: int) -> str:
    """Relative to the store; `axes` of the array, all but the first of which are whole in a chunk."""
    return f"{array}/c/{number}" + "/0" * (axes - 1)


def write_shard(path: Path, samples: Iterable[np.ndarray], capacity: int) -> None:
    """Write the chunks of a shard with room for `capacity` samples. The file takes its name when it is complete."""
    zstd = Zstd(level=ZSTD_LEVEL)
    index, offset = [], 0
    with replacing(path) as temporary, temporary.open("wb") as file:
        for sample in samples:
            chunk = zstd.encode(np.ascontiguousarray(sample, dtype="<f4"))
            file.write(chunk)
            file.write(struct.pack("<I", google_crc32c.value(chunk)))
            index.append((offset, len(chunk) + 4))
            offset += len(chunk) + 4
        missing = (2**64 - 1, 2**64 - 1)  # the last shard may have room for more samples than there are
        entries = np.array(index + [missing] * (capacity - len(index)), dtype="<u8").tobytes()
        file.write(entries)
        file.write(struct.pack("<I", google_crc32c.value(entries)))


def create_arrays(group: zarr.Group, shapes: dict[str, tuple[int, ...]]) -> None:
    """The metadata that goes with the shards."""
    for name, shape in shapes.items():
        options: dict[str, Any] = {"serializer": BytesCodec(endian="little")}
        group.create_array(
            name,
            shape=shape,
            dtype="float32",
            chunks=(1, *shape[1:]),
            shards=(samples_per_shard(shape), *shape[1:]),
            compressors=[ZstdCodec(level=ZSTD_LEVEL), Crc32cCodec()],
            dimension_names=("frame" if name == FRAMES else "sample", *SPACE[: len(shape) - 2], "channel"),
            **options,
        )
