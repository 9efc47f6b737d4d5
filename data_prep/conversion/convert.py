"""Convert raw fields into a prepared store: fields to float32 channels, sharded Zarr, statistics, manifest.

Memory holds a few blocks of a raw file and a sample, whatever the sizes of the files. A rank owns whole shards, because
two writers in one shard lose data. Everything is built in a folder beside the store (unfinished.py) and renamed when it
is complete; what a killed conversion left there is used by the next one. The result has the same bytes in any case.
"""

import contextlib
import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from geomano_hpc import __version__
from geomano_hpc.atomic import sha256
from geomano_hpc.data_prep.conversion.finish import finish
from geomano_hpc.data_prep.conversion.open_fields import Opened, open_fields
from geomano_hpc.data_prep.conversion.raw_fields import Bad, RawFields
from geomano_hpc.data_prep.conversion.sources import Source
from geomano_hpc.data_prep.conversion.statistics import moments
from geomano_hpc.data_prep.conversion.unfinished import Unfinished
from geomano_hpc.data_prep.generate import provenance
from geomano_hpc.data_prep.problems import Problem
from geomano_hpc.data_prep.ranks import Communicator, SingleProcess, together
from geomano_hpc.data_prep.readers import reading
from geomano_hpc.data_prep.readers.variable import BLOCK_BYTES
from geomano_hpc.data_prep.shards import Shard, samples_per_shard, shards_of, write_shard
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import DataError
from geomano_hpc.progress import progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Converted:
    made: bool  # False: the same store was there already
    used: list[str]  # what is used of what is there, in words
    unused: list[str]  # variables of the raw files that nothing asks for


def convert(
    sources: Sequence[Path],
    problem: Problem,
    out: Path,
    world: Communicator | None = None,
    roles: Sequence[str] = (),
) -> Converted:
    """Write the store. Where the same one is already there it is left; another one there is an error.

    Of the benchmark's problems one source has its first samples train and its last samples test; of two the first
    trains and the second tests. Otherwise the problem's rule splits the samples of all sources, or `roles` names the
    split of each source.
    """
    world = world or SingleProcess()
    opened = together(world, lambda: open_fields(sources, problem, roles))[world.rank]
    fields = opened.fields
    origin = _origin(opened, problem, roles, world)
    work = Unfinished(out)
    if together(world, out.exists)[0]:
        together(world, lambda: _reuse(out, opened.problem, origin, work) if world.rank == 0 else None)
        return Converted(False, fields.used, fields.unused)
    together(world, lambda: _check_complete(fields) if world.rank == 0 else None)
    with contextlib.ExitStack() as held:
        together(world, lambda: held.enter_context(work.begin(origin)) if world.rank == 0 else None)
        try:
            together(world, lambda: _rewrite_scattered(fields, work, world))
            records = _write_shards(fields, work, world)
            together(world, lambda: finish(records, opened, origin, work, out) if world.rank == 0 else None)
        except Exception:
            together(world, lambda: work.remove() if world.rank == 0 else None)  # nothing half-written stays behind
            raise
    return Converted(True, fields.used, fields.unused)


def same_origin(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two stores hold the same data. The versions that wrote them do not matter, nor what an older format did
    not write down."""
    known = (one.keys() & other.keys()) - {"versions"}
    return all(one[key] == other[key] for key in known)


def read_fields(sources: Sequence[Path], problem: Problem, roles: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """What the arrays of a store of these sources would hold, in memory."""
    fields = open_fields(sources, problem, roles).fields
    with TemporaryDirectory() as folder:
        for one in fields.scattered():
            one.rewrite(Path(folder))
        values = {}
        for name, shape in fields.shapes().items():
            values[name], bad = fields.read(name, 0, shape[0], Path(folder))
            _refuse_not_finite(bad)
    return values


def _check_complete(fields: RawFields) -> None:
    for variable in fields.variables():
        with reading(variable.path, repr(variable.key)):
            variable.check_complete()


def _reuse(out: Path, problem: Problem, origin: dict[str, Any], work: Unfinished) -> None:
    card = open_store(out).card
    known = (problem.name, problem.kind, problem.protocol) == (card.problem, card.kind, card.protocol)
    if not known or not same_origin(card.provenance, origin):
        raise DataError(
            f"{out} exists and was converted from other files or settings; remove it or choose another name"
        )
    work.remove()  # a conversion that was killed after it had put the store in place


def _origin(opened: Opened, asked: Problem, roles: Sequence[str], world: Communicator) -> dict[str, Any]:
    """Where the data came from: enough to make the same store again, and to know it when it is there."""
    files, problem = opened.files, opened.problem

    def describe() -> dict[int, dict[str, Any]]:
        mine = [number for number in range(len(files)) if number % world.size == world.rank]
        return {
            number: {
                "name": files[number].name,
                "sha256": content_sha256(files[number]),
                "generation": provenance(files[number]),
            }
            for number in mine
        }

    described = {number: one for part in together(world, describe) for number, one in part.items()}
    if world.rank == 0 and (asked.inputs, asked.targets) != (problem.inputs, problem.targets):
        logger.warning("%s: no %s in it; taking %s", files[0], _keys_in_words(asked), _keys_in_words(problem))
    splits = opened.fields.splits
    return {
        "sources": [described[number] for number in range(len(files))],
        "stride": problem.stride,
        "points": opened.points,
        "keys": {"input": _keys(problem.inputs or problem.targets), "target": _keys(problem.targets)},
        "axes": problem.axes,
        "channel": problem.channel,
        "frames": {"input": problem.frames_in, "target": problem.frames_out},
        "samples": {name: len(numbers) for name, numbers in splits.items()},
        "numbers_sha256": _of_files_of_numbers(opened),
        "settings": problem.to_json(),
        "roles": list(roles),
        "versions": {"geomano_hpc": __version__, **{name: version(name) for name in ("numpy", "zarr", "numcodecs")}},
    }


def _of_files_of_numbers(opened: Opened) -> str | None:
    """Such files are known by name only, and what is in them may change: a hash of the samples that they chose."""
    fields, rule = opened.fields, opened.problem.splits
    if not any(isinstance(getattr(rule, name), Path) for name in fields.splits):
        return None
    digest = hashlib.sha256()
    for numbers in (fields.groups, fields.numbers, *fields.splits.values()):
        digest.update(np.asarray(numbers, "<i8").tobytes())
    return digest.hexdigest()


def _keys(sources: Sequence[Source]) -> str | list[str]:
    keys = [source.key or source.name for source in sources]
    return keys[0] if len(keys) == 1 else keys


def _keys_in_words(problem: Problem) -> str:
    return " and ".join(repr(source.key) for source in (*problem.inputs, *problem.targets))


def content_sha256(path: Path) -> str:
    """Of a file; of a folder, such as a Zarr store, of the names and contents of its files."""
    if path.is_file():
        return sha256(path)
    listed = sorted(file for file in path.rglob("*") if file.is_file())
    lines = "".join(f"{file.relative_to(path).as_posix()} {sha256(file)}\n" for file in listed)
    return hashlib.sha256(lines.encode()).hexdigest()


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

    def write() -> tuple[dict[str, Any], list[Bad]]:
        records, bad = {}, []
        mine = missing[world.rank :: world.size]
        with progress("convert", len(mine), shown=world.rank == 0) as advance:
            for shard in mine:
                samples = _Rows(fields, shard, work.spill)
                write_shard(work.store / shard.file, samples, samples_per_shard(shapes[shard.array]))
                records[shard.file] = {"sha256": sha256(work.store / shard.file), "moments": samples.moments}
                bad += samples.bad
                if not samples.bad:
                    work.record(shard, records[shard.file])
                advance("")
        return records, bad

    parts = together(world, write)
    together(world, lambda: _refuse_not_finite([one for _, bad in parts for one in bad]))
    return {
        **{file: record for file, record in found.items() if record is not None},
        **{file: record for part, _ in parts for file, record in part.items()},
    }


class _Rows:
    """The rows of a shard, read a few at a time; afterwards, the statistics of each field in each of them, and which
    samples are not finite."""

    def __init__(self, fields: RawFields, shard: Shard, spill: Path) -> None:
        self._fields, self._shard, self._spill = fields, shard, spill
        count = len(fields.arrays[shard.array].fields)
        self.moments = np.empty((shard.stop - shard.start, count, 3))  # of each row, of each field
        self.bad: list[Bad] = []

    def __iter__(self) -> Iterator[np.ndarray]:
        name, stop = self._shard.array, self._shard.stop
        fields = len(self._fields.arrays[name].fields)
        step = max(1, BLOCK_BYTES // self._fields.bytes_read_per_row(name))
        for start in range(self._shard.start, stop, step):
            values, bad = self._fields.read(name, start, min(start + step, stop), self._spill)
            self.bad += bad
            for number, row in enumerate(values, start - self._shard.start):
                for one in range(fields):
                    self.moments[number, one] = moments(row[..., one::fields] if fields > 1 else row)
                yield row


def _refuse_not_finite(bad: list[Bad]) -> None:
    if not bad:
        return
    where = min(bad)[0]
    samples = sorted({number for place, number in bad if place == where})
    shown = ", ".join(map(str, samples[:8])) + (", ..." if len(samples) > 8 else "")
    raise DataError(f"{where}: NaN or Inf in {len(samples)} samples (samples {shown})")
