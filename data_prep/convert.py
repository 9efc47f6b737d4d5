"""Convert raw fields into a prepared store: fields to float32 channels, sharded Zarr, statistics, manifest.

A rank owns whole shards, because two writers in one shard lose data. The store is built under a temporary name and
renamed when it is complete.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from geomano_hpc import __version__
from geomano_hpc.atomic import new_folder, sha256, write_json
from geomano_hpc.data_prep.generate import provenance
from geomano_hpc.data_prep.problems import Problem
from geomano_hpc.data_prep.ranks import Communicator, SingleProcess
from geomano_hpc.data_prep.readers import check_finite, read_field
from geomano_hpc.data_prep.store import ARRAYS, AXES, MANIFEST, Normaliser, StoreCard, open_store
from geomano_hpc.errors import DataError
from geomano_hpc.progress import progress

SHARD_BYTES = 64 << 20


@dataclass(frozen=True)
class Fields:
    """Input and target of the same samples."""

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
        if same_origin(open_store(out).card.provenance, origin):
            return False
        raise DataError(
            f"{out} exists and was converted from other files or settings; remove it or choose another name"
        )
    fields = read_fields(sources, problem)
    normalisers = _normalisers(fields, problem)
    with contextlib.ExitStack() as building:
        # The store takes its name when rank 0 leaves this block, after every rank has written its shards.
        temporary = world.bcast(building.enter_context(new_folder(out)) if world.rank == 0 else None)
        if world.rank == 0:
            _create_arrays(temporary, fields)
        world.allgather(None)
        checksums: dict[str, str] = {}
        for part in world.allgather(_write_shards(temporary, fields, world)):
            checksums.update(part)
        if world.rank == 0:
            sizes = (problem.train_samples, problem.test_samples)
            card = StoreCard(problem.name, problem.task, *sizes, normalisers, origin)
            zarr.open_group(temporary, mode="r+").attrs["geomano"] = card.to_json()
            write_json(temporary / MANIFEST, {"format": card.format, "sha256": checksums})
    world.allgather(None)  # nobody returns before the store has its name
    return True


def same_origin(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two stores hold the same data. The version that wrote them does not matter."""
    return {**one, "geomano_hpc": None} == {**other, "geomano_hpc": None}


def read_fields(sources: Sequence[Path], problem: Problem) -> Fields:
    raw = {path: _read_raw(path, problem) for path in dict.fromkeys(sources)}
    train, test = problem.train_samples, problem.test_samples
    if len(sources) == 1:
        pieces = [(sources[0], slice(0, train), train + test), (sources[0], slice(-test, None), train + test)]
    else:
        pieces = [(sources[0], slice(0, train), train), (sources[1], slice(0, test), test)]
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ARRAYS}
    for path, samples, needed in pieces:
        if len(raw[path].input) < needed:
            raise DataError(
                f"{path}: {problem.input_key!r} has {len(raw[path].input)} samples, {needed} are needed "
                f"(--train {train}, --test {test})"
            )
        for name, key in (("input", problem.input_key), ("target", problem.target_key)):
            parts[name].append(_channels(raw[path].array(name)[samples], name, problem, f"{path}: {key!r}"))
    try:
        fields = Fields(np.concatenate(parts["input"]), np.concatenate(parts["target"]))
    except ValueError as error:
        raise DataError(f"{sources[0]} and {sources[-1]} do not fit together: {error}") from error
    if fields.input.shape[:3] != fields.target.shape[:3]:
        raise DataError(
            f"{sources[0]}: {problem.input_key!r} gives a grid of {fields.input.shape[1:3]} "
            f"but {problem.target_key!r} gives {fields.target.shape[1:3]}"
        )
    return fields


def _read_raw(path: Path, problem: Problem) -> Fields:
    """The two variables of a file as they are. Sample i of one belongs to sample i of the other."""
    given = read_field(path, problem.input_key)
    target = given if problem.target_key == problem.input_key else read_field(path, problem.target_key)
    if len(given) != len(target):
        raise DataError(
            f"{path}: {problem.input_key!r} has {len(given)} samples but {problem.target_key!r} has {len(target)}"
        )
    return Fields(given, target)


def _channels(field: np.ndarray, name: str, problem: Problem, where: str) -> np.ndarray:
    """[sample, x], [sample, x, y] or [sample, x, y, time] -> float32 [sample, x, y, channel], downsampled."""
    rank = 4 if problem.task == "rollout" else 3
    if rank == 3 and field.ndim == 2:  # a 1D problem: a line is a grid of one row
        field = field[:, None]
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


def _samples_per_shard(values: np.ndarray) -> int:
    return max(1, min(len(values), SHARD_BYTES // (4 * int(np.prod(values.shape[1:])))))


def _create_arrays(temporary: Path, fields: Fields) -> None:
    group = zarr.create_group(temporary, zarr_format=3)
    for name in ARRAYS:
        values = fields.array(name)
        group.create_array(
            name,
            shape=values.shape,
            dtype="float32",
            chunks=(1, *values.shape[1:]),
            shards=(_samples_per_shard(values), *values.shape[1:]),
            compressors=[ZstdCodec(level=3), Crc32cCodec()],
            dimension_names=AXES,
        )


def _write_shards(temporary: Path, fields: Fields, world: Communicator) -> dict[str, str]:
    """Write this rank's shards and return the checksum of each shard file."""
    group = zarr.open_group(temporary, mode="r+")
    jobs = []
    for name in ARRAYS:
        values = fields.array(name)
        per_shard = _samples_per_shard(values)
        jobs += [(name, number, number * per_shard, per_shard) for number in range(-(-len(values) // per_shard))]
    checksums = {}
    mine = jobs[world.rank :: world.size]
    with progress("convert", len(mine)) as advance:
        for name, number, start, count in mine:
            array = group[name]
            assert isinstance(array, zarr.Array)
            array[start : start + count] = fields.array(name)[start : start + count]
            shard = temporary / name / "c" / str(number) / "0" / "0" / "0"
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
        if not values.std() > 0:
            raise DataError(f"{name!r} has the same value everywhere in the training split, so it cannot be normalised")
        normalisers[name] = Normaliser(float(values.mean()), float(values.std()))
    return normalisers
