"""Read one sample out of a shard: look it up in the shard's index, read its bytes, check them, decompress.

Zarr v3, codec `sharding_indexed`: a shard is one file with an index of (offset, length) per chunk, as little-endian
64-bit integers with a CRC32C behind them. A chunk of a store is one sample: zstd, then a CRC32C of the compressed
bytes. zarr-python goes through its event loop and reads the index again for every sample; this keeps the index, and
all of the rest runs without Python's lock, so that threads read side by side.
"""

import os
import sys
import threading
from collections import OrderedDict
from typing import Any

import google_crc32c
import numpy as np
from numcodecs import zstd
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec
from zarr.codecs.sharding import ShardingCodecIndexLocation

from geomano_hpc.data.engines import StoredArray

# A message followed by its CRC32C (little-endian) has this CRC32C, whatever the message is.
_RESIDUE = 0x48674BC7
_NOT_STORED = 2**64 - 1  # a chunk that holds nothing but the fill value has this offset and length
_MOST_OPEN_SHARDS = 256


def why_not_direct(array: StoredArray) -> str | None:
    """What keeps this reader from an array that was not written as docs/store.md says; None if nothing."""
    sharding = _sharding(array)
    if sharding is None:
        return f"{array.name!r} has no shards"
    kinds = tuple(type(codec) for codec in sharding.codecs), tuple(type(codec) for codec in sharding.index_codecs)
    if kinds != ((BytesCodec, ZstdCodec, Crc32cCodec), (BytesCodec, Crc32cCodec)):
        return f"{array.name!r} has other codecs than zstd and crc32c"
    sample = array.shape[1:]
    if sharding.chunk_shape != (1, *sample) or array.zarr.shards != (array.samples_per_shard, *sample):
        return f"a chunk of {array.name!r} is not one whole sample"
    if array.zarr.dtype != np.dtype("<f4") or sys.byteorder != "little":
        return f"{array.name!r} is {array.zarr.dtype} on a {sys.byteorder}-endian machine, not little-endian float32"
    return None


def _sharding(array: StoredArray) -> ShardingCodec | None:
    codecs: Any = getattr(array.zarr.metadata, "codecs", ())
    return codecs[0] if len(codecs) == 1 and isinstance(codecs[0], ShardingCodec) else None


class Shard:
    """An open shard and its index. The file closes with the last reference to it."""

    def __init__(self, array: StoredArray, number: int) -> None:
        self.file = array.shard_file(number).open("rb", buffering=0)
        length = 16 * array.samples_per_shard + 4
        sharding = _sharding(array)
        assert sharding is not None
        at_start = sharding.index_location is ShardingCodecIndexLocation.start
        self.size = os.fstat(self.file.fileno()).st_size
        index = os.pread(self.file.fileno(), length, 0 if at_start else max(0, self.size - length))
        if len(index) != length or google_crc32c.value(index) != _RESIDUE:
            raise ValueError("the index of the shard does not match its checksum")
        self.index = np.frombuffer(index[:-4], "<u8").reshape(-1, 2)

    def chunk(self, position: int) -> bytes | None:
        """The compressed bytes of a chunk and their checksum, which fits them; None for a chunk of fill values."""
        offset, length = self.index[position].tolist()
        if offset == _NOT_STORED and length == _NOT_STORED:
            return None
        chunk = os.pread(self.file.fileno(), length, offset) if offset + length <= self.size else b""
        if len(chunk) != length or google_crc32c.value(chunk) != _RESIDUE:
            raise ValueError("the sample does not match its checksum")
        return chunk


class DirectReader:
    def __init__(self, array: StoredArray) -> None:
        self.array = array
        self._shards: OrderedDict[int, Shard] = OrderedDict()
        self._lock = threading.Lock()

    def read_into(self, sample: int, out: np.ndarray) -> None:
        number, position = divmod(sample, self.array.samples_per_shard)
        try:
            chunk = self._shard(number).chunk(position)
            if chunk is None:
                out[...] = self.array.zarr.fill_value
            else:
                zstd.decompress(memoryview(chunk)[:-4], out)
        except FileNotFoundError:
            raise self.array.error(sample, "the shard is missing") from None
        except (OSError, ValueError, RuntimeError) as error:
            raise self.array.error(sample, error) from error

    def _shard(self, number: int) -> Shard:
        with self._lock:
            if number not in self._shards:
                self._shards[number] = Shard(self.array, number)
                if len(self._shards) > _MOST_OPEN_SHARDS:
                    self._shards.popitem(last=False)
            self._shards.move_to_end(number)
            return self._shards[number]
