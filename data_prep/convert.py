"""Convert raw fields into a prepared store: fields to float32 channels, sharded Zarr, statistics, manifest.

Memory holds a few blocks of a raw file and a sample, whatever the sizes of the files. A rank owns whole shards, because
two writers in one shard lose data. Everything is built in a folder beside the store (unfinished.py) and renamed when it
is complete; what a killed conversion left there is used by the next one. The result has the same bytes in any case.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from geomano_hpc import __version__
from geomano_hpc.atomic import sha256
from geomano_hpc.data_prep.finish import finish
from geomano_hpc.data_prep.generate import provenance
from geomano_hpc.data_prep.problems import Problem
from geomano_hpc.data_prep.ranks import Communicator, SingleProcess, together
from geomano_hpc.data_prep.raw_fields import RawFields, open_fields
from geomano_hpc.data_prep.readers.variable import BLOCK_BYTES
from geomano_hpc.data_prep.shards import Shard, samples_per_shard, shards_of, write_shard
from geomano_hpc.data_prep.statistics import Moments, moments
from geomano_hpc.data_prep.store import ARRAYS, open_store
from geomano_hpc.data_prep.unfinished import Unfinished
from geomano_hpc.errors import DataError
from geomano_hpc.progress import progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fields:
    """Input and target of the same samples."""

    input: np.ndarray
    target: np.ndarray


def convert(sources: Sequence[Path], problem: Problem, out: Path, world: Communicator | None = None) -> bool:
    """Write the store. Returns False where the same one is already there; another one there is an error.

    One source: its first samples train, its last samples test. Two sources: the first trains, the second tests.
    """
    world = world or SingleProcess()
    fields = together(world, lambda: open_fields(sources, problem))[world.rank]
    origin = _origin(sources, fields.keys, problem, world)
    work = Unfinished(out)
    if together(world, out.exists)[0]:
        together(world, lambda: _reuse(out, origin, work) if world.rank == 0 else None)
        return False
    with contextlib.ExitStack() as held:
        together(world, lambda: held.enter_context(work.begin(origin)) if world.rank == 0 else None)
        try:
            together(world, lambda: _rewrite_scattered(fields, work, world))
            records = _write_shards(fields, work, world)
            together(world, lambda: finish(records, fields, problem, origin, work, out) if world.rank == 0 else None)
        except Exception:
            together(world, lambda: work.remove() if world.rank == 0 else None)  # nothing half-written stays behind
            raise
    return True


def same_origin(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two stores hold the same data. The versions that wrote them do not matter."""
    return {**one, "versions": None} == {**other, "versions": None}


def read_fields(sources: Sequence[Path], problem: Problem) -> Fields:
    """What a store of these sources would hold, in memory."""
    fields = open_fields(sources, problem)
    with TemporaryDirectory() as folder:
        for one in fields.scattered():
            one.rewrite(Path(folder))
        values = {}
        for name in ARRAYS:
            values[name], bad = fields.read(name, 0, fields.shape(name)[0], Path(folder))
            _refuse_not_finite(bad)
    return Fields(**values)


def _reuse(out: Path, origin: dict[str, Any], work: Unfinished) -> None:
    if not same_origin(open_store(out).card.provenance, origin):
        raise DataError(
            f"{out} exists and was converted from other files or settings; remove it or choose another name"
        )
    work.remove()  # a conversion that was killed after it had put the store in place


def _origin(sources: Sequence[Path], keys: tuple[str, str], problem: Problem, world: Communicator) -> dict[str, Any]:
    """Where the data came from: enough to make the same store again, and to know it when it is there."""

    def describe() -> dict[int, dict[str, Any]]:
        mine = [number for number in range(len(sources)) if number % world.size == world.rank]
        return {
            number: {
                "name": sources[number].name,
                "sha256": sha256(sources[number]),
                "generation": provenance(sources[number]),
            }
            for number in mine
        }

    described = {number: one for part in together(world, describe) for number, one in part.items()}
    if keys != (problem.input_key, problem.target_key) and world.rank == 0:
        logger.warning(
            "%s: no %r and %r in it; taking %r and %r", sources[0], problem.input_key, problem.target_key, *keys
        )
    return {
        "sources": [described[number] for number in range(len(sources))],
        "stride": problem.stride,
        "keys": {"input": keys[0], "target": keys[1]},
        "axes": problem.axes,
        "channel": problem.channel,
        "frames": {"input": problem.input_frames, "target": problem.target_frames},
        "samples": {"train": problem.train_samples, "test": problem.test_samples},
        "versions": {"geomano_hpc": __version__, **{name: version(name) for name in ("numpy", "zarr", "numcodecs")}},
    }


def _rewrite_scattered(fields: RawFields, work: Unfinished, world: Communicator) -> None:
    """Variables whose samples lie scattered in the file: each is read once, by one rank."""
    scattered = fields.scattered()
    load = [0] * world.size
    mine = []
    for one in scattered:  # the most expensive first, each to the rank with the least to do
        rank = load.index(min(load))
        load[rank] += one.variable.stored_bytes + one.variable.nbytes // 4
        mine += [one] * (rank == world.rank)
    with progress("read", len(mine), shown=world.rank == 0 and bool(mine)) as advance:
        for one in mine:
            one.rewrite(work.spill)
            advance(one.variable.key)


def _write_shards(fields: RawFields, work: Unfinished, world: Communicator) -> dict[str, dict[str, Any]]:
    """Write the shards that are missing, each by one rank. Returns what is recorded of every shard, by file."""
    shapes = fields.shapes()
    shards = shards_of(shapes)

    def earlier() -> dict[str, Any]:
        return {shard.file: work.recorded(shard) for shard in shards[world.rank :: world.size]}

    found = {file: record for part in together(world, earlier) for file, record in part.items()}
    missing = [shard for shard in shards if found[shard.file] is None]

    def write() -> tuple[dict[str, Any], list[tuple[str, int]]]:
        records, bad = {}, []
        mine = missing[world.rank :: world.size]
        with progress("convert", len(mine), shown=world.rank == 0) as advance:
            for shard in mine:
                samples = _Samples(fields, shard, work.spill)
                write_shard(work.store / shard.file, samples, samples_per_shard(shapes[shard.array]))
                record = {
                    "sha256": sha256(work.store / shard.file),
                    "moments": [asdict(one) for one in samples.moments],
                }
                bad += samples.bad
                if not samples.bad:
                    work.record(shard, record)
                records[shard.file] = record
                advance("")
        return records, bad

    parts = together(world, write)
    together(world, lambda: _refuse_not_finite([one for _, bad in parts for one in bad]))
    return {
        **{file: record for file, record in found.items() if record is not None},
        **{file: record for part, _ in parts for file, record in part.items()},
    }


class _Samples:
    """The samples of a shard, read a few at a time; afterwards, their statistics and which of them are not finite."""

    def __init__(self, fields: RawFields, shard: Shard, spill: Path) -> None:
        self._fields, self._shard, self._spill = fields, shard, spill
        self.moments: list[Moments] = []
        self.bad: list[tuple[str, int]] = []

    def __iter__(self) -> Iterator[np.ndarray]:
        parts = self._fields.parts[self._shard.array]
        step = max(1, BLOCK_BYTES // max(part.bytes_read_per_sample for part in parts))
        for start in range(self._shard.start, self._shard.stop, step):
            stop = min(start + step, self._shard.stop)
            values, bad = self._fields.read(self._shard.array, start, stop, self._spill)
            self.bad += bad
            for sample in values:
                self.moments.append(moments(sample))
                yield sample


def _refuse_not_finite(bad: list[tuple[str, int]]) -> None:
    if not bad:
        return
    where = min(bad)[0]
    samples = sorted({number for place, number in bad if place == where})
    shown = ", ".join(map(str, samples[:8])) + (", ..." if len(samples) > 8 else "")
    raise DataError(f"{where}: NaN or Inf in {len(samples)} samples (samples {shown})")
