"""A small real store of several shards, without a generator: made in a moment."""

from pathlib import Path

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from geomano_hpc.atomic import sha256, write_json
from geomano_hpc.data_prep.store import ARRAYS, MANIFEST
from geomano_hpc.data_prep.store_card import Axis, Field, StoreCard


def make_store(
    path: Path, samples: int = 11, grid: int = 12, per_shard: int = 4, test: int = 3
) -> dict[str, np.ndarray]:
    """Returns what the arrays hold. Sample 2 of `input` is zero everywhere, so that Zarr does not store its chunk."""
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal((samples, grid, grid, 1), dtype=np.float32) for name in ARRAYS}
    values["input"][2] = 0
    group = zarr.create_group(path, zarr_format=3)
    for name in ARRAYS:
        array = group.create_array(
            name,
            shape=values[name].shape,
            dtype="float32",
            chunks=(1, grid, grid, 1),
            shards=(per_shard, grid, grid, 1),
            compressors=[ZstdCodec(level=3), Crc32cCodec()],
            dimension_names=("sample", "x", "y", "channel"),
        )
        array[:] = values[name]
    origin = {"sources": [], "stride": 1, "samples": {"train": samples - test, "test": test}}
    axes = (Axis("x", grid, boundary="wall"), Axis("y", grid, boundary="wall"))
    splits = {"train": samples - test, "test": test}
    card = StoreCard("darcy", "steady", (Field("coeff"),), (Field("sol"),), splits, axes, origin)
    group.attrs["geomano"] = card.to_json()
    first = 0
    for name, size in splits.items():
        group.create_array(name, data=np.arange(first, first + size))
        first += size
    shards = [file for name in ARRAYS for file in (path / name / "c").rglob("*") if file.is_file()]
    sums = {file.relative_to(path).as_posix(): sha256(file) for file in shards}
    write_json(path / MANIFEST, {"format": card.format, "sha256": sums})
    return values
