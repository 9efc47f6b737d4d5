"""The last step of a conversion: metadata, splits, statistics, card and manifest, and the store takes its name."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec

from geomano_hpc.atomic import flush, sha256, write_json
from geomano_hpc.data_prep.conversion.open_fields import Opened
from geomano_hpc.data_prep.conversion.statistics import combine, moments
from geomano_hpc.data_prep.conversion.unfinished import Unfinished
from geomano_hpc.data_prep.shards import create_arrays, shards_of
from geomano_hpc.data_prep.store import ARRAYS, CONSTANTS, FRAMES, MANIFEST, STATIC
from geomano_hpc.data_prep.store_card import FORMAT, Field, StoreCard
from geomano_hpc.errors import DataError

logger = logging.getLogger(__name__)

_LEAST_DEVIATION = 1e-5  # of the mean: float32 has seven digits, and so few are left of what varies


def finish(
    records: dict[str, dict[str, Any]], opened: Opened, origin: dict[str, Any], work: Unfinished, out: Path
) -> None:
    """`records` is what is known of every shard, by file: its checksum and the statistics of its rows."""
    for file in [file for file in work.store.rglob("*") if file.is_file()]:
        if file.relative_to(work.store).as_posix() not in records:  # of a conversion that was killed
            file.unlink()
    group = zarr.create_group(work.store, zarr_format=3)
    create_arrays(group, opened.fields.shapes())
    raw = opened.fields
    write_small_arrays(group, raw.splits, raw.groups, raw.numbers, raw.constants)
    card = _card(records, opened, origin)
    group.attrs["geomano"] = card.to_json()
    write_manifest(work.store, {file: record["sha256"] for file, record in records.items()})
    try:
        work.store.rename(out)
    except OSError as error:
        raise DataError(f"{out}: cannot be put in place: {error}") from error
    work.remove()


def write_manifest(store: Path, checksums: dict[str, str]) -> None:
    """The checksums of the shards are known; those of the other files, which are all there, are added."""
    files = {file.relative_to(store).as_posix(): file for file in store.rglob("*") if file.is_file()}
    metadata = {name: sha256(file) for name, file in files.items() if name not in checksums and name != MANIFEST}
    write_json(store / MANIFEST, {"format": FORMAT, "sha256": checksums, "metadata": metadata})
    flush(*(files[name] for name in metadata))  # the shards and the manifest were flushed when they were written


def _card(records: dict[str, dict[str, Any]], opened: Opened, origin: dict[str, Any]) -> StoreCard:
    problem, raw = opened.problem, opened.fields
    fields = {name: _fields(records, opened, name) for name in raw.arrays}
    given, target = (FRAMES, FRAMES) if problem.stores_frames else ARRAYS
    return StoreCard(
        problem.name,
        problem.kind,
        fields[given],
        fields[target],
        {name: len(numbers) for name, numbers in raw.splits.items()},
        opened.axes,
        origin,
        fields.get(STATIC, ()),
        _constants(opened),
        raw.windows,
        opened.time,
        problem.normalise,
        problem.protocol,
    )


def _fields(records: dict[str, dict[str, Any]], opened: Opened, array: str) -> tuple[Field, ...]:
    """Mean and standard deviation of each field over the training split; 0 and 1 where nothing is normalised."""
    raw, units = opened.fields, opened.units
    names = raw.arrays[array].fields
    shards = [shard for shard in shards_of(raw.shapes()) if shard.array == array]
    rows = np.concatenate([records[shard.file]["moments"] for shard in shards])
    frames = raw.arrays[array].frames
    chosen = rows.reshape(-1, frames, *rows.shape[1:])[raw.splits["train"]].reshape(-1, *rows.shape[1:])
    found = []
    for number, name in enumerate(names):
        normaliser = combine(chosen[:, number])
        mean, std = float(normaliser.mean), float(normaliser.std)  # type: ignore[arg-type]
        if not std > 0:
            what = array if opened.problem.protocol else name
            found_so = f"{what!r} has the same value everywhere in the training split, after rounding to float32"
            if opened.problem.normalise:
                raise DataError(
                    f"{found_so}, so it cannot be normalised; leave it out, give it as --constant, or subtract the "
                    "mean beforehand"
                )
            logger.warning("%s", found_so)
            mean = 0.0
        if std < _LEAST_DEVIATION * abs(mean):  # not where std is 0, which is said already
            logger.warning(
                "%s varies by %.1e around %.6g: float32 keeps few digits of that; subtract the mean beforehand",
                name,
                std,
                mean,
            )
        kept = (mean, std) if opened.problem.normalise else (0.0, 1.0)
        found.append(Field(name, _units(name, units), *kept))
    return tuple(found)


def _units(name: str, units: dict[str, str]) -> str:
    return units.get(name) or units.get(name.partition(".")[0], "")


def _constants(opened: Opened) -> tuple[Field, ...]:
    """One that is the same in all training samples tells a model nothing: it is passed as 0."""
    raw, found = opened.fields, []
    for number, constant in enumerate(opened.problem.constants):
        values = raw.constants[raw.splits["train"], number, None]
        normaliser = combine(np.array([moments(value) for value in values]))
        mean, std = float(normaliser.mean), float(normaliser.std)  # type: ignore[arg-type]
        if not opened.problem.normalise:
            mean, std = 0.0, 1.0
        found.append(Field(constant.name, _units(constant.name, opened.units), mean, std or 1.0))
    return tuple(found)


def write_small_arrays(
    group: zarr.Group,
    splits: Mapping[str, np.ndarray],
    groups: np.ndarray,
    numbers: np.ndarray,
    constants: np.ndarray | None,
) -> None:
    """Which samples of the store train, validate and test, where each of them was in the raw files (its file and its
    number there), and constants."""
    for name, samples in splits.items():
        _write(group, name, samples, "int64", [f"{name}_sample"])
    _write(group, "source_file", groups, "int64", ["sample"])
    _write(group, "source_sample", numbers, "int64", ["sample"])
    if constants is not None and constants.shape[1]:
        _write(group, CONSTANTS, constants, "float32", ["sample", "constant"])


def _write(group: zarr.Group, name: str, values: np.ndarray, dtype: str, axes: Iterable[str]) -> None:
    shape: tuple[int, ...] = values.shape
    array = group.create_array(
        name,
        shape=shape,
        dtype=dtype,
        chunks=shape,
        compressors=[Crc32cCodec()],
        dimension_names=tuple(axes),
        config={"write_empty_chunks": True},  # a missing file would read as zeros as well, but not be missed
    )
    array[:] = values
