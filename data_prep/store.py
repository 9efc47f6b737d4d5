"""The prepared store: what it holds and how it is opened. docs/store.md is its specification.

A store is a Zarr v3 group. Of a steady problem it has two arrays, `input` and `target`, both [sample, x, y, channel] in
float32; of a rollout one array `frames` [frame, x, y, channel], the frames of all trajectories behind each other, and
perhaps `static`. A chunk is one sample or frame; a shard holds many, so that there are few files. The group's attribute
`geomano` is the StoreCard (store_card.py). Smaller arrays say which samples train, validate and test, where each was in
the raw files, and what is constant for each.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from geomano_hpc.data_prep.store_card import READABLE, Normaliser, StoreCard
from geomano_hpc.errors import DataError

__all__ = ["ARRAYS", "MANIFEST", "Normaliser", "Store", "StoreCard", "open_store", "read_manifest"]

ARRAYS = ("input", "target")
FRAMES, STATIC, CONSTANTS = "frames", "static", "constants"
SPLITS = ("train", "validation", "test")
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Store:
    path: Path
    group: zarr.Group
    card: StoreCard

    def array(self, name: str) -> zarr.Array[Any]:
        array = self.group[name]
        assert isinstance(array, zarr.Array)
        return array

    @property
    def arrays(self) -> tuple[str, ...]:
        """Of fields: a chunk of each is one sample, or one frame."""
        if not self.card.stores_frames:
            return ARRAYS
        return (FRAMES, STATIC) if self.card.statics else (FRAMES,)

    @property
    def grid(self) -> tuple[int, ...]:
        """Points along each axis of the store; a line is a grid of one row."""
        points = tuple(axis.points for axis in self.card.axes)
        return (1, *points) if self.card.is_line else points

    def read(self, name: str, samples: slice) -> np.ndarray:
        """Samples of one array. Every chunk carries a checksum: a flipped bit is an error, never a wrong number."""
        try:
            return np.asarray(self.array(name)[samples])
        except Exception as error:
            raise DataError(
                f"{self.path}: samples {samples.start} to {samples.stop} of {name!r} cannot be read ({error}); "
                f"`geomano data verify {self.path}` names the bad shard"
            ) from error

    def rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Samples of one array by their numbers, ascending; those that follow each other are read together."""
        pieces = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        return np.concatenate([self.read(name, slice(int(piece[0]), int(piece[-1]) + 1)) for piece in pieces])

    def split(self, name: str) -> np.ndarray:
        """The numbers of the samples of a split; of the trajectories, where frames are stored."""
        if name not in self.card.splits:
            raise DataError(f"{self.path}: has no split {name!r}; there are {', '.join(self.card.splits)}")
        if self.card.format == 1:  # training samples come first
            first = 0 if name == "train" else self.card.splits["train"]
            return np.arange(first, first + self.card.splits[name])
        return np.asarray(self.array(name)[:])

    def constants(self) -> np.ndarray | None:
        """[sample, constant], or None."""
        return np.asarray(self.array(CONSTANTS)[:]) if self.card.constants else None

    def content_hash(self) -> str:
        """One hash for all the data: of the checksums of the shards. Versions do not matter."""
        if self.card.format == 1:
            return hashlib.sha256((self.path / MANIFEST).read_bytes()).hexdigest()
        return hashlib.sha256(json.dumps(read_manifest(self.path), sort_keys=True).encode()).hexdigest()


def open_store(path: str | Path) -> Store:
    path = Path(path)
    if not path.is_dir():
        raise DataError(
            f"{path}: no such store; make one with `geomano data convert` (or `geomano data generate` first)"
        )
    try:
        group = zarr.open_group(path, mode="r")
        content: Any = group.attrs["geomano"]
    except (KeyError, OSError, ValueError) as error:
        raise DataError(f"{path}: not a store of this package ({type(error).__name__}: {error})") from error
    if content.get("format") not in READABLE:
        raise DataError(
            f"{path}: store format {content.get('format')}, this version reads {' and '.join(map(str, READABLE))}; "
            "convert the raw file again"
        )
    if not (path / MANIFEST).is_file():
        raise DataError(f"{path}: {MANIFEST} is missing, so the store is not complete; convert the raw file again")
    for name in read_manifest(path):
        if not (path / name).is_file():  # Zarr would read it as zeros
            raise DataError(f"{path}: shard {name} is missing; convert the raw file again")
    return Store(path, group, StoreCard.from_json(content, lambda name: group[name].shape))  # type: ignore[union-attr]


def read_manifest(store: Path, part: str = "sha256") -> dict[str, str]:
    """Checksum of every shard, or of all other files (`metadata`): relative name -> sha256."""
    return dict(json.loads((store / MANIFEST).read_text(encoding="utf-8")).get(part, {}))
