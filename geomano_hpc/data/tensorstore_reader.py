"""Samples through tensorstore, the extra [fast-io]: another implementation of Zarr v3, in C++."""

import numpy as np
import tensorstore as ts

from geomano_hpc.data.engines import StoredArray


class TensorstoreReader:
    def __init__(self, array: StoredArray) -> None:
        self.array = array
        folder = (array.store.path / array.name).resolve()
        # No cache: training visits a sample once an epoch, and memory stays bounded.
        context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}}
        self._opened = ts.open(spec, read=True, context=context).result()

    def read_into(self, sample: int, out: np.ndarray) -> None:
        self.array.check_is_there(sample)
        try:
            out[...] = self._opened[sample].read().result()
        except (ValueError, RuntimeError, OSError) as error:
            raise self.array.error(sample, error) from error
