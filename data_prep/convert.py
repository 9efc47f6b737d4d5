"""Convert raw fields into a prepared store: fields to float32 channels, sharded Zarr, statistics, manifest.

A rank owns whole shards, because two writers in one shard lose data. The store is built under a temporary name and
renamed when it is complete.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from geomano_hpc import __version__
from geomano_hpc.atomic import write_json
from geomano_hpc.data_prep.generate import provenance
from geomano_hpc.data_prep.problems import Problem
from geomano_hpc.data_prep.ranks import Communicator, SingleProcess
from geomano_hpc.data_prep.readers import check_finite, read_field
from geomano_hpc.data_prep.store import ARRAYS, AXES, MANIFEST, Normaliser, StoreCard, open_store, sha256
from geomano_hpc.errors import DataError
from geomano_hpc.progress import progress

SHARD_BYTES = 64 << 20


@dataclass(frozen=True)
class Fields:
    """All samples as the store holds them: training samples first."""

    input: np.ndarray
    target: np.ndarray

    def array(self, name: str) -> np.ndarray:
        return self.input if name == "input" else self.target


def convert(sources: Sequence[Path], problem: Problem, out: Path, world: Communicator | None = None) -> bool:
    """Write the store. Returns False where the same one is already there; another one there is an error.

    One source: its first samples train, its last samples test. Two sources: the first trains, the second tests.
    """
    world = world or SingleProcess()
    origin = world.bcast(_origin(sources, problem) if world.rank == 0 else None)
    if out.exists():
        if open_store(out).card.provenance == origin:
            return False
        raise DataError(
            f"{out} exists and was converted from other files or settings; remove it or choose another name"
        )

    fields = read_fields(sources, problem)
    temporary = out.with_name(f".{out.name}.partial")
    failure = world.bcast(_begin(temporary, fields) if world.rank == 0 else None)
    if failure:
        raise DataError(failure)
    checksums: dict[str, str] = {}
    for part in world.allgather(_write_shards(temporary, fields, world)):
        checksums.update(part)
    if world.rank == 0:
        card = StoreCard(
            problem.name,
            problem.task,
            problem.train_samples,
            problem.test_samples,
            _normalisers(fields, problem),
            origin,
        )
        zarr.open_group(temporary, mode="r+").attrs["geomano"] = card.to_json()
        write_json(temporary / MANIFEST, {"format": card.format, "sha256": checksums})
        temporary.rename(out)
    world.bcast(None)  # nobody returns before the store has its name
    return True


def read_fields(sources: Sequence[Path], problem: Problem) -> Fields:
    if len(sources) == 1:
        return _assemble(
            sources[0], sources[0], slice(0, problem.train_samples), slice(-problem.test_samples, None), problem
        )
    train, test = sources
    return _assemble(train, test, slice(0, problem.train_samples), slice(0, problem.test_samples), problem)


def _assemble(train: Path, test: Path, train_samples: slice, test_samples: slice, problem: Problem) -> Fields:
    parts: dict[str, list[np.ndarray]] = {"input": [], "target": []}
    raw: dict[tuple[Path, str], np.ndarray] = {}
    for path, samples, wanted in (
        (train, train_samples, problem.train_samples),
        (test, test_samples, problem.test_samples),
    ):
        for name, key in (("input", problem.input_key), ("target", problem.target_key)):
            if (path, key) not in raw:
                raw[path, key] = read_field(path, key)
            field = raw[path, key]
            needed = wanted if train != test else problem.train_samples + problem.test_samples
            if len(field) < needed:
                raise DataError(
                    f"{path}: {key!r} has {len(field)} samples, {needed} are needed "
                    f"(--train {problem.train_samples}, --test {problem.test_samples})"
                )
            parts[name].append(_channels(field[samples], name, problem, f"{path}: {key!r}"))
    try:
        fields = Fields(np.concatenate(parts["input"]), np.concatenate(parts["target"]))
    except ValueError as error:
        raise DataError(f"{train} and {test} do not fit together: {error}") from error
    if fields.input.shape[:3] != fields.target.shape[:3]:
        raise DataError(
            f"{train}: {problem.input_key!r} gives {fields.input.shape[:3]} (samples, x, y) "
            f"but {problem.target_key!r} gives {fields.target.shape[:3]}"
        )
    return fields


def _channels(field: np.ndarray, name: str, problem: Problem, where: str) -> np.ndarray:
    """[sample, x, y] or [sample, x, y, time] -> float32 [sample, x, y, channel], downsampled."""
    rank = 4 if problem.task == "rollout" else 3
    if field.ndim != rank:
        raise DataError(
            f"{where}: expected {rank} axes (samples, x, y{', time' if rank == 4 else ''}), found shape {field.shape}"
        )
    check_finite(field, where)
    field = field[:, :: problem.stride, :: problem.stride]
    if rank == 3:
        return field[..., None].astype(np.float32)
    frames = problem.input_frames + problem.target_frames
    if field.shape[-1] < frames:
        raise DataError(f"{where}: has {field.shape[-1]} frames, {frames} are needed")
    chosen = slice(0, problem.input_frames) if name == "input" else slice(problem.input_frames, frames)
    return field[..., chosen].astype(np.float32)


def _origin(sources: Sequence[Path], problem: Problem) -> dict[str, Any]:
    """Where the data came from: enough to make the same store again, and to know it when it is there."""
    for path in sources:
        if not path.is_file():
            raise DataError(f"{path}: no such file")
    return {
        "sources": [{"name": path.name, "sha256": sha256(path), "generation": provenance(path)} for path in sources],
        "stride": problem.stride,
        "keys": {"input": problem.input_key, "target": problem.target_key},
        "samples": {"train": problem.train_samples, "test": problem.test_samples},
        "geomano_hpc": __version__,
    }


def _samples_per_shard(sample_shape: tuple[int, ...], samples: int) -> int:
    return max(1, min(samples, SHARD_BYTES // (4 * int(np.prod(sample_shape)))))


def _begin(temporary: Path, fields: Fields) -> str | None:
    """An empty store with its metadata. Returns what went wrong, for every rank to raise."""
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.parent.mkdir(parents=True, exist_ok=True)
    try:
        group = zarr.create_group(temporary, zarr_format=3)
        for name in ARRAYS:
            values = fields.array(name)
            per_shard = _samples_per_shard(values.shape[1:], len(values))
            group.create_array(
                name,
                shape=values.shape,
                dtype="float32",
                chunks=(1, *values.shape[1:]),
                shards=(per_shard, *values.shape[1:]),
                compressors=[ZstdCodec(level=3), Crc32cCodec()],
                dimension_names=AXES,
            )
    except OSError as error:
        return f"{temporary}: cannot be written ({error})"
    return None


def _write_shards(temporary: Path, fields: Fields, world: Communicator) -> dict[str, str]:
    """Write this rank's shards and return the checksum of each shard file."""
    group = zarr.open_group(temporary, mode="r+")
    jobs = []
    for name in ARRAYS:
        values = fields.array(name)
        per_shard = _samples_per_shard(values.shape[1:], len(values))
        jobs += [(name, number, number * per_shard, per_shard) for number in range(-(-len(values) // per_shard))]
    checksums = {}
    mine = jobs[world.rank :: world.size]
    with progress("convert", len(mine)) as advance:
        for name, number, start, count in mine:
            array = group[name]
            assert isinstance(array, zarr.Array)
            array[start : start + count] = fields.array(name)[start : start + count]
            shard = temporary / name / "c" / str(number) / "0" / "0" / "0"
            with shard.open("rb") as file:
                os.fsync(file.fileno())
            checksums[shard.relative_to(temporary).as_posix()] = sha256(shard)
            advance("")
    return checksums


def _normalisers(fields: Fields, problem: Problem) -> dict[str, Normaliser]:
    """Mean and standard deviation in float64 over the training split; the identity where the benchmark uses none."""
    if not problem.normalise:
        return {name: Normaliser(0.0, 1.0) for name in ARRAYS}
    normalisers = {}
    for name in ARRAYS:
        values = fields.array(name)[: problem.train_samples].astype(np.float64)
        normalisers[name] = Normaliser(float(values.mean()), float(values.std()))
    return normalisers
