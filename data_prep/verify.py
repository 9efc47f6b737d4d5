"""Check a prepared store: every checksum, shape and sample. Memory holds a shard's worth of samples at a time.

Outliers: of each sample the root mean square and the largest magnitude are compared with those of all samples of the
array. One that is further from the median than 10 robust standard deviations (1.4826 times the median absolute
deviation, and at least 1 % of the median, for fields that hardly vary) is named. Of samples that are normally
distributed, none in 10^22 is. A diverged solver, a spike, or another unit in one file is.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from geomano_hpc.atomic import sha256
from geomano_hpc.data_prep.shards import Shard, shard_file
from geomano_hpc.data_prep.store import ARRAYS, FRAMES, MANIFEST, STATIC, Store, open_store, read_manifest
from geomano_hpc.errors import DataError
from geomano_hpc.progress import progress

OUTLIER_DEVIATIONS = 10.0
LEAST_DEVIATION = 0.01  # of the median
FEWEST_SAMPLES = 10  # with fewer, a median says little
_BLOCK_BYTES = 32 << 20


def verify(path: Path) -> list[str]:
    """Every problem of the store in one line each; an empty list is a good store."""
    store = open_store(path)
    problems = _check_files(path)
    for name in store.arrays:
        wrong = _check_shape(store, name)
        problems += wrong or _check_samples(store, name, problems)
    if store.card.format > 1:
        problems += _check_splits(store)
    return problems


def _check_files(path: Path) -> list[str]:
    shards, metadata = read_manifest(path), read_manifest(path, "metadata")
    problems = []
    with progress("checksums", len(shards)) as advance:
        for what, files in (("shard", shards), ("file", metadata)):
            for name, expected in sorted(files.items()):
                if not (path / name).is_file():
                    problems.append(f"{path / name}: {what} is missing")
                elif sha256(path / name) != expected:
                    problems.append(f"{path / name}: {what} does not match its checksum in the manifest")
                if what == "shard":
                    advance("")
    inside = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()} - {MANIFEST}
    if not metadata:  # format 1 listed the shards only
        inside = {name for name in inside if not name.endswith("zarr.json")}
    return problems + [
        f"{path / name}: file is not in the manifest" for name in sorted(inside - shards.keys() - metadata.keys())
    ]


def _check_shape(store: Store, name: str) -> list[str]:
    array, card = store.array(name), store.card
    rows = sum(card.splits.values()) * (card.windows.frames if name == FRAMES and card.windows else 1)
    channels = _channels(store, name)
    if array.ndim != len(store.grid) + 2 or array.shape[0] != rows or array.dtype != np.float32:
        return [
            f"{store.path}: {name!r} has shape {array.shape} and type {array.dtype}, "
            f"the card says {rows} {'frames' if name == FRAMES else 'samples'} of float32 (grid, channel)"
        ]
    if tuple(array.shape[1:-1]) != store.grid or array.shape[-1] != channels:
        return [
            f"{store.path}: {name!r} has {array.shape[1:-1]} points and {array.shape[-1]} channels, the card says "
            f"{store.grid} and {channels}"
        ]
    listed = [file for file in read_manifest(store.path) if file.startswith(f"{name}/")]
    if len(listed) != len(_shards(store, name)):
        return [f"{store.path}: {name!r} has {len(_shards(store, name))} shards, the manifest lists {len(listed)}"]
    return []


def _fields(store: Store, name: str) -> list[str]:
    """Of a frame: those on the last axis of an array, once for each of its frames."""
    card = store.card
    return [field.name for field in {"input": card.inputs, STATIC: card.statics}.get(name, card.targets)]


def _channels(store: Store, name: str) -> int:
    windows, frames = store.card.windows, 1
    if windows is not None and name in ARRAYS:
        frames = windows.frames_in if name == "input" else windows.frames_out
    return frames * len(_fields(store, name))


def _shards(store: Store, name: str) -> list[Shard]:
    array = store.array(name)
    assert array.shards is not None
    size = array.shards[0]
    return [
        Shard(name, number, start, min(start + size, array.shape[0]), shard_file(name, number, array.ndim))
        for number, start in enumerate(range(0, array.shape[0], size))
    ]


@dataclass
class _Seen:
    """What is remembered of one field in each sample that could be read."""

    samples: list[int] = field(default_factory=list)
    sizes: dict[str, list[float]] = field(default_factory=lambda: {"root mean square": [], "largest magnitude": []})


def _check_samples(store: Store, name: str, problems_of_files: list[str]) -> list[str]:
    """Field by field: one in large units would hide what is wrong with another."""
    shards = _shards(store, name)
    problems, seen = [], [_Seen() for _ in _fields(store, name)]
    with progress(f"samples of {name}", len(shards)) as advance:
        for shard in shards:
            if not any(line.startswith(f"{store.path / shard.file}:") for line in problems_of_files):
                problems += _check_shard(store, shard, seen)
            advance("")
    for number, of_field in enumerate(seen):
        for what, sizes in of_field.sizes.items():
            for sample, size, middle in _outliers(of_field.samples, sizes):
                shard = next(shard for shard in shards if shard.start <= sample < shard.stop)
                problems.append(
                    f"{_where(store, shard, sample, number)} is an outlier: its {what} is {size:.3g}, "
                    f"the median of all samples is {middle:.3g}"
                )
    return problems


def _where(store: Store, shard: Shard, sample: int, number: int) -> str:
    fields = _fields(store, shard.array)
    named = f", field {fields[number]}" if len(fields) > 1 else ""
    return f"{store.path / shard.file}: sample {sample} of {shard.array!r}{named}"


def _check_shard(store: Store, shard: Shard, seen: list[_Seen]) -> list[str]:
    problems = []
    step = max(1, _BLOCK_BYTES // (4 * math.prod(store.array(shard.array).shape[1:])))
    for start in range(shard.start, shard.stop, step):
        try:
            values = store.read(shard.array, slice(start, min(start + step, shard.stop)))
        except DataError as error:
            return [f"{store.path / shard.file}: {error}"]
        for sample, row in enumerate(values, start):
            for number, of_field in enumerate(seen):
                one = row[..., number :: len(seen)]
                low, high = float(one.min()), float(one.max())
                if not (math.isfinite(low) and math.isfinite(high)):
                    problems.append(f"{_where(store, shard, sample, number)} has NaN or Inf")
                elif low == high and shard.array in ARRAYS:  # a frame at rest is no fault
                    problems.append(f"{_where(store, shard, sample, number)} has the same value everywhere")
                else:
                    of_field.samples.append(sample)
                    of_field.sizes["root mean square"].append(math.sqrt(np.square(one, dtype=np.float64).mean()))
                    of_field.sizes["largest magnitude"].append(max(abs(low), abs(high)))
    return problems


def _outliers(samples: list[int], sizes: list[float]) -> list[tuple[int, float, float]]:
    """Sample, its size, and the median, of every sample that is far from the median."""
    if len(samples) < FEWEST_SAMPLES:
        return []
    values = np.array(sizes)
    middle = float(np.median(values))
    deviation = max(1.4826 * float(np.median(np.abs(values - middle))), LEAST_DEVIATION * middle)
    far = np.flatnonzero(np.abs(values - middle) > OUTLIER_DEVIATIONS * deviation)
    return [(samples[index], sizes[index], middle) for index in far.tolist()]


def _check_splits(store: Store) -> list[str]:
    """Every sample of the store is in one split."""
    problems = []
    seen = np.concatenate([store.split(name) for name in store.card.splits])
    for name, size in store.card.splits.items():
        if len(store.split(name)) != size:
            problems.append(f"{store.path / name}: has {len(store.split(name))} samples, the card says {size}")
    if not np.array_equal(np.sort(seen), np.arange(sum(store.card.splits.values()))):
        problems.append(f"{store.path}: the splits {', '.join(store.card.splits)} do not hold each sample once")
    return problems
