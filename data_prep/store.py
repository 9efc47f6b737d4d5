"""The prepared store: what it holds and how it is opened. docs/store.md is its specification.

A store is a Zarr v3 group with two arrays, `input` and `target`, both [sample, x, y, channel] in float32. A chunk is
one sample; a shard holds many, so that there are few files. The group's attribute `geomano` is the StoreCard. Smaller
arrays beside them say which samples train and test, and where each was in the raw files.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import zarr

from geomano_hpc.errors import DataError

FORMAT = 2
READABLE = (1, 2)  # 1 had only the two arrays
ARRAYS = ("input", "target")
AXES = ("sample", "x", "y", "channel")
MANIFEST = "manifest.json"
_KEYS = {"kind": "task"}  # of the card, where its key in the store has another name: format 2 called it so

Values = TypeVar("Values", bound=Any)  # a numpy array or a torch tensor


@dataclass(frozen=True)
class Normaliser:
    """One scalar mean and standard deviation over the training split, as in the benchmark (not per point).

    Examples:
        >>> from geomano_hpc import Normaliser
        >>> normaliser = Normaliser(mean=2.0, std=0.5)
        >>> normaliser.encode(3.0), normaliser.decode(2.0)
        (2.0, 3.0)
    """

    mean: float
    std: float

    def encode(self, field: Values) -> Values:
        return (field - self.mean) / self.std

    def decode(self, field: Values) -> Values:
        return field * self.std + self.mean


@dataclass(frozen=True)
class StoreCard:
    """What a store says of itself."""

    problem: str
    kind: str
    train_samples: int
    test_samples: int
    normalisers: dict[str, Normaliser]
    provenance: dict[str, Any]
    format: int = FORMAT

    def split(self, name: str) -> slice:
        """Training samples come first, test samples follow."""
        if name == "train":
            return slice(0, self.train_samples)
        assert name == "test"
        return slice(self.train_samples, self.train_samples + self.test_samples)

    def to_json(self) -> dict[str, Any]:
        content = asdict(self)
        return {_KEYS.get(name, name): value for name, value in content.items()}

    @staticmethod
    def from_json(content: dict[str, Any]) -> "StoreCard":
        normalisers = {name: Normaliser(**values) for name, values in content["normalisers"].items()}
        names = {key: name for name, key in _KEYS.items()}
        fields = {names.get(key, key): value for key, value in content.items()}
        return StoreCard(**{**fields, "normalisers": normalisers})


@dataclass(frozen=True)
class Store:
    path: Path
    group: zarr.Group
    card: StoreCard

    def array(self, name: str) -> zarr.Array[Any]:
        array = self.group[name]
        assert isinstance(array, zarr.Array)
        return array

    def read(self, name: str, samples: slice) -> np.ndarray:
        """Samples of one array. Every chunk carries a checksum: a flipped bit is an error, never a wrong number."""
        try:
            return np.asarray(self.array(name)[samples])
        except Exception as error:
            raise DataError(
                f"{self.path}: samples {samples.start} to {samples.stop} of {name!r} cannot be read ({error}); "
                f"`geomano data verify {self.path}` names the bad shard"
            ) from error

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
    return Store(path, group, StoreCard.from_json(content))


def read_manifest(store: Path, part: str = "sha256") -> dict[str, str]:
    """Checksum of every shard, or of all other files (`metadata`): relative name -> sha256."""
    return dict(json.loads((store / MANIFEST).read_text(encoding="utf-8")).get(part, {}))
