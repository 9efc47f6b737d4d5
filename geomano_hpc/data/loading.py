"""Load the splits of a store as the recipe says: in memory, once per node, or streamed; chosen aloud and recorded."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from geomano_hpc.config import DataConfig
from geomano_hpc.data.composed import Field
from geomano_hpc.data.engines import SampleReader, choose_engine, open_reader
from geomano_hpc.data.fields import Split, compose, samples_of
from geomano_hpc.data.node_memory import Node, find_node, raise_everywhere, shared_bytes
from geomano_hpc.data.stream import Readers, StreamedField
from geomano_hpc.data_prep.store import Store
from geomano_hpc.errors import ConfigError
from geomano_hpc.progress import progress

logger = logging.getLogger(__name__)

_GIB = 1 << 30
_ALIGNMENT = 4096
_BLOCK_BYTES = 1 << 18
# Without data.memory_budget_gib: what stays free is for the model, its gradients, and the page cache.
_SHARE_OF_FREE_MEMORY = 0.5


@dataclass(frozen=True)
class Loaded:
    splits: dict[str, Split]
    record: dict[str, Any]  # what was chosen and from which numbers, for environment.json


def load_splits(store: Store, config: DataConfig, names: Sequence[str] | None = None) -> Loaded:
    """Every rank of the world calls it. All splits of the store, unless some are named."""
    names = list(store.card.splits) if names is None else names
    most = {"train": config.train_samples, "validation": config.validation_samples, "test": config.test_samples}
    samples = {name: samples_of(store, name, most[name]) for name in names}
    engine = choose_engine(config.engine, store)
    readers = {array: open_reader(engine, store, array) for array in store.arrays}
    parts: list[tuple[SampleReader, np.ndarray]] = []
    composed = {}
    for name, chosen in samples.items():  # what each split needs, in the order in which it will ask for it
        composed[name] = compose(store, chosen, lambda array, rows: _note(parts, readers[array], rows))
    node = find_node()
    record = _choose(config, sum(_bytes(reader, rows) for reader, rows in parts), node)
    threads = Readers.start(config.reader_threads, config.prefetch)
    if record["loading"] == "memory":
        fields = _in_memory(parts, node, threads)
        threads.pool.shutdown()
    else:
        fields = [StreamedField(reader, rows, threads) for reader, rows in parts]
    found = iter(fields)
    pinned = torch.cuda.is_available()
    splits = {
        name: replace(compose(store, chosen, lambda *_: next(found)), pinned=pinned) for name, chosen in samples.items()
    }
    return Loaded(splits, {**record, "engine": engine})


def _note(parts: list[tuple[SampleReader, np.ndarray]], reader: SampleReader, rows: np.ndarray) -> Field:
    """In place of the rows themselves: their shape, as long as it is not known where they will be."""
    parts.append((reader, rows))
    return torch.empty((len(rows), *reader.array.shape[1:]), device="meta")


def _choose(config: DataConfig, size: int, node: Node) -> dict[str, Any]:
    if config.memory_budget_gib is not None:
        budget, source = int(config.memory_budget_gib * _GIB), "data.memory_budget_gib"
    else:
        budget, source = int(_SHARE_OF_FREE_MEMORY * node.free_bytes), f"{_SHARE_OF_FREE_MEMORY:.0%} of the free memory"
    loading = config.loading
    if loading == "auto":
        loading = "memory" if size <= budget else "stream"
    elif loading == "memory" and size > node.free_bytes:
        raise ConfigError(
            f"data.loading memory: the samples take {size / _GIB:.2f} GiB, {node.free_bytes / _GIB:.2f} GiB are free; "
            "set data.loading=stream"
        )
    shared = f", one copy for {len(node.ranks)} ranks of the node" if len(node.ranks) > 1 else ""
    logger.info(
        f"data.loading {config.loading}: {loading}{shared if loading == 'memory' else ''}. The samples take "
        f"{size / _GIB:.3f} GiB, {node.free_bytes / _GIB:.2f} GiB are free, "
        f"the budget is {budget / _GIB:.2f} GiB ({source})"
    )
    return {
        "loading": loading,
        "asked_for": {"loading": config.loading, "engine": config.engine},
        "sample_bytes": size,
        "free_bytes": node.free_bytes,
        "budget_bytes": budget,
        "ranks_sharing": len(node.ranks),
    }


def _blocks(field: np.ndarray) -> list[slice]:
    """Rows that one thread reads at a time: a thread of its own for each of a million small frames takes a minute."""
    step = max(1, _BLOCK_BYTES * len(field) // max(1, field.nbytes))
    return [slice(first, first + step) for first in range(0, len(field), step)]


def _read_block(reader: SampleReader, rows: np.ndarray, out: np.ndarray) -> None:
    for place, row in enumerate(rows.tolist()):
        reader.read_into(row, out[place])


def _bytes(reader: SampleReader, rows: np.ndarray) -> int:
    return 4 * len(rows) * int(np.prod(reader.array.shape[1:]))


def _in_memory(parts: Sequence[tuple[SampleReader, np.ndarray]], node: Node, threads: Readers) -> list[Field]:
    """Decode all rows into memory of the node. Each of its ranks decodes its share of them."""
    starts = [0]
    for reader, rows in parts:
        starts.append(-(-(starts[-1] + _bytes(reader, rows)) // _ALIGNMENT) * _ALIGNMENT)
    memory = shared_bytes(starts[-1], node)
    fields = []
    for start, (reader, rows) in zip(starts, parts, strict=False):
        values = memory[start : start + _bytes(reader, rows)].view(np.float32)
        fields.append(values.reshape(len(rows), *reader.array.shape[1:]))
    blocks = [
        (reader, rows[block], field[block])
        for field, (reader, rows) in zip(fields, parts, strict=True)
        for block in _blocks(field)
    ]
    mine = blocks[node.index :: len(node.ranks)]
    reads: list[Future[None]] = [threads.pool.submit(_read_block, *block) for block in mine]
    failure = None
    try:
        with progress("load", len(reads), shown=node.rank == 0 and starts[-1] > _GIB) as advance:
            for read in reads:
                read.result()
                advance("")
    except Exception as error:
        threads.pool.shutdown(cancel_futures=True)
        failure = error
    raise_everywhere(failure)  # and nobody goes on before the others have decoded their share
    return [torch.from_numpy(field) for field in fields]
