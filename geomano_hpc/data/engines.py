"""The engines that read samples of a store. Each gives the same bits, and an error where a shard is damaged.

direct       our own reader of a shard (shards.py), with the codec libraries that zarr-python brings along
tensorstore  Google's, from the extra [fast-io]
zarr         plain zarr-python, the judge of the others
"""

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import zarr

from geomano_hpc.data_prep.store import Store
from geomano_hpc.errors import BackendError, DataError

logger = logging.getLogger(__name__)

ENGINES = ("direct", "tensorstore", "zarr")


class SampleReader(Protocol):
    """Reads one array of a store, sample by sample, from several threads at once."""

    array: "StoredArray"

    def read_into(self, sample: int, out: np.ndarray) -> None:
        """Decode one sample or frame into `out` [x, y, channel]; a damaged or missing shard is a DataError."""


class StoredArray:
    """Where the samples of one array of a store lie: samples per shard, and the file of each shard."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self.zarr: zarr.Array[Any] = store.array(name)
        self.shape = tuple(self.zarr.shape)
        self.samples_per_shard = (self.zarr.shards or self.zarr.chunks)[0]

    def shard_file(self, shard: int) -> Path:
        key = self.zarr.metadata.encode_chunk_key((shard, *(0 for _ in self.shape[1:])))
        return self.store.path / self.name / key

    def check_is_there(self, sample: int) -> None:
        """Zarr reads a shard that is not there as zeros."""
        if not self.shard_file(sample // self.samples_per_shard).is_file():
            raise self.error(sample, "the shard is missing")

    def error(self, sample: int, reason: object) -> DataError:
        shard = self.shard_file(sample // self.samples_per_shard).relative_to(self.store.path)
        return DataError(
            f"{self.store.path}: sample {sample} of {self.name!r} in shard {shard} cannot be read "
            f"({' '.join(str(reason).split())}); check the others with `geomano data verify {self.store.path}` "
            "and convert the raw file again"
        )


class ZarrReader:
    def __init__(self, array: StoredArray) -> None:
        self.array = array

    def read_into(self, sample: int, out: np.ndarray) -> None:
        self.array.check_is_there(sample)
        try:
            out[...] = self.array.zarr[sample]
        except Exception as error:
            raise self.array.error(sample, error) from error


def choose_engine(wanted: str, store: Store) -> str:
    """The engine of this name, or for `auto` the fastest one that reads this store here; the log says which and why."""
    from geomano_hpc.data.shards import why_not_direct

    reasons = {
        "direct": next(filter(None, (why_not_direct(StoredArray(store, name)) for name in store.arrays)), None),
        "tensorstore": None
        if find_spec("tensorstore")
        else "tensorstore is not installed: pip install 'geomano_hpc[fast-io]'",
        "zarr": None,
    }
    if wanted != "auto":
        if reasons[wanted] is not None:
            raise BackendError(f"data.engine {wanted} cannot read {store.path}: {reasons[wanted]}")
        logger.info("reading %s with engine %s, as data.engine says", store.path, wanted)
        return wanted
    chosen = next(name for name in ENGINES if reasons[name] is None)
    refused = "".join(f"; not {name}: {reasons[name]}" for name in ENGINES[: ENGINES.index(chosen)])
    level = logging.WARNING if chosen == "zarr" else logging.INFO  # several times slower: nobody should overlook it
    logger.log(level, "reading %s with engine %s, the fastest here (data.engine auto)%s", store.path, chosen, refused)
    return chosen


def open_reader(engine: str, store: Store, name: str) -> SampleReader:
    array = StoredArray(store, name)
    if engine == "direct":
        from geomano_hpc.data.shards import DirectReader

        return DirectReader(array)
    if engine == "tensorstore":
        from geomano_hpc.data.tensorstore_reader import TensorstoreReader

        return TensorstoreReader(array)
    assert engine == "zarr"
    return ZarrReader(array)
