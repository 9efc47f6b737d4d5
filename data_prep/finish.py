"""The last step of a conversion: metadata, splits, statistics, card and manifest, and the store takes its name."""

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec

from geomano_hpc.atomic import flush, sha256, write_json
from geomano_hpc.data_prep.problems import Problem
from geomano_hpc.data_prep.raw_fields import RawFields
from geomano_hpc.data_prep.shards import create_arrays, shards_of
from geomano_hpc.data_prep.statistics import Moments, combine
from geomano_hpc.data_prep.store import ARRAYS, MANIFEST, Normaliser, StoreCard
from geomano_hpc.data_prep.unfinished import Unfinished
from geomano_hpc.errors import DataError


def finish(
    records: dict[str, dict[str, Any]],
    fields: RawFields,
    problem: Problem,
    origin: dict[str, Any],
    work: Unfinished,
    out: Path,
) -> None:
    """`records` is what is known of every shard, by file: its checksum and the statistics of its samples."""
    for file in [file for file in work.store.rglob("*") if file.is_file()]:
        if file.relative_to(work.store).as_posix() not in records:  # of a conversion that was killed
            file.unlink()
    group = zarr.create_group(work.store, zarr_format=3)
    create_arrays(group, fields.shapes())
    _write_splits(group, fields, problem, len(origin["sources"]))
    sizes = (problem.train_samples, problem.test_samples)
    card = StoreCard(problem.name, problem.kind, *sizes, _normalisers(records, fields, problem), origin)
    group.attrs["geomano"] = card.to_json()
    checksums = {file: record["sha256"] for file, record in records.items()}
    files = {file.relative_to(work.store).as_posix(): file for file in work.store.rglob("*") if file.is_file()}
    metadata = {name: sha256(file) for name, file in files.items() if name not in checksums and name != MANIFEST}
    write_json(work.store / MANIFEST, {"format": card.format, "sha256": checksums, "metadata": metadata})
    flush(*(files[name] for name in metadata))  # the shards and the manifest were flushed when they were written
    try:
        work.store.rename(out)
    except OSError as error:
        raise DataError(f"{out}: cannot be put in place: {error}") from error
    work.remove()


def _normalisers(records: dict[str, dict[str, Any]], fields: RawFields, problem: Problem) -> dict[str, Normaliser]:
    """Mean and standard deviation over the training split; the identity where the benchmark uses none."""
    if not problem.normalise:
        return {name: Normaliser(0.0, 1.0) for name in ARRAYS}
    normalisers = {}
    for name in ARRAYS:
        shards = [shard for shard in shards_of(fields.shapes()) if shard.array == name]
        samples = [Moments(**one) for shard in shards for one in records[shard.file]["moments"]]
        normalisers[name] = combine(samples[: problem.train_samples])
        if not normalisers[name].std > 0:
            raise DataError(f"{name!r} has the same value everywhere in the training split, so it cannot be normalised")
    return normalisers


def _write_splits(group: zarr.Group, fields: RawFields, problem: Problem, sources: int) -> None:
    """Which samples of the store train and test, and where each of them was in the raw files."""
    train, test = problem.train_samples, problem.test_samples
    content = {
        "train": ("train_sample", np.arange(train)),
        "test": ("test_sample", np.arange(train, train + test)),
        "source_file": ("sample", np.repeat([0, sources - 1], [train, test])),
        "source_sample": ("sample", np.concatenate([part.samples for part in fields.parts["input"]])),
    }
    for name, (axis, values) in content.items():
        array = group.create_array(
            name,
            shape=values.shape,
            dtype="int64",
            chunks=values.shape,
            compressors=[Crc32cCodec()],
            dimension_names=(axis,),
            config={"write_empty_chunks": True},  # a missing file would read as zeros as well, but not be missed
        )
        array[:] = values
