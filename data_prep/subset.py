"""A store of some samples of another one, split anew: such as training samples alone, the last of them to be judged on.

It is a store of its own, so that whatever is trained and judged on it cannot have seen the other samples. Statistics of
the fields stay those of the training split that the samples were taken from.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from geomano_hpc.atomic import new_folder, sha256
from geomano_hpc.data_prep.conversion.convert import same_origin
from geomano_hpc.data_prep.conversion.finish import write_manifest, write_small_arrays
from geomano_hpc.data_prep.shards import create_arrays, samples_per_shard, shards_of, write_shard
from geomano_hpc.data_prep.store import FRAMES, Store, open_store
from geomano_hpc.data_prep.store_card import FORMAT
from geomano_hpc.errors import DataError
from geomano_hpc.locks import one_at_a_time


def subset(store: Store, splits: Mapping[str, np.ndarray], out: Path) -> Store:
    """The store `out` with these samples of `store`, of a rollout trajectories: made, or found as it is wanted."""
    origin = _origin(store, splits)
    with one_at_a_time(out.with_name(f".{out.name}.lock")):
        if out.is_dir():
            found = open_store(out)
            if not same_origin(found.card.provenance, origin):
                raise DataError(f"{out} holds other samples than are wanted of {store.path}; remove it")
            return found
        with new_folder(out) as folder:
            _write(store, splits, origin, folder)
    return open_store(out)


def _origin(store: Store, splits: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """As that of the store, which takes the place of its raw files."""
    known = store.card.provenance
    made = next((source.get("generation") for source in known["sources"]), None)
    source = {"name": store.path.name, "sha256": store.content_hash(), "generation": made}
    return {**known, "sources": [source], "samples": {name: len(samples) for name, samples in splits.items()}}


def _write(store: Store, splits: Mapping[str, np.ndarray], origin: dict[str, Any], folder: Path) -> None:
    used = np.unique(np.concatenate(list(splits.values())))
    rows = {name: _rows(store, name, used) for name in store.arrays}
    shapes = {name: (len(rows[name]), *store.array(name).shape[1:]) for name in store.arrays}
    group = zarr.create_group(folder, zarr_format=3)
    create_arrays(group, shapes)
    checksums = {}
    for shard in shards_of(shapes):
        wanted = rows[shard.array][shard.start : shard.stop].tolist()
        samples = (store.read(shard.array, slice(row, row + 1))[0] for row in wanted)
        write_shard(folder / shard.file, samples, samples_per_shard(shapes[shard.array]))
        checksums[shard.file] = sha256(folder / shard.file)
    constants = store.constants()
    in_store = {name: np.searchsorted(used, samples) for name, samples in splits.items()}
    write_small_arrays(group, in_store, np.zeros_like(used), used, None if constants is None else constants[used])
    sizes = {name: len(samples) for name, samples in splits.items()}
    card = replace(store.card, splits=sizes, provenance=origin, format=FORMAT)
    group.attrs["geomano"] = card.to_json()
    write_manifest(folder, checksums)


def _rows(store: Store, name: str, samples: np.ndarray) -> np.ndarray:
    if name != FRAMES:
        return samples
    assert store.card.windows is not None
    frames = store.card.windows.frames
    return (samples[:, None] * frames + np.arange(frames)).ravel()
