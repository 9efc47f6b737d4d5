"""Fields and constants by the words of the command line.

--input k                    variable k of the raw files
--input k=fields/perm        ... under another name; a path inside HDF5 or Zarr
--input k=coeff.npy          from a file of its own: its only variable, or the one of that name
--input k=more.h5:perm       a variable of a file of its own
--target "h=data[0]"         one channel of a variable with several; without it, each channel is a field
--constant nu=0.01           a number, a variable with one number for each sample, or @attribute of the file
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from geomano_hpc.errors import ConfigError

_CHANNEL = re.compile(r"^(.*)\[(\d+)\]$")


@dataclass(frozen=True)
class Source:
    """Where a field is. `key` is empty for the only variable of a file."""

    name: str
    key: str
    file: Path | None = None  # None: the raw files of the conversion
    channel: int | None = None


@dataclass(frozen=True)
class Constant:
    """A number, or where numbers are: a variable, or @attribute."""

    name: str
    key: str = ""
    value: float | None = None


def parse_source(text: str) -> Source:
    name, separator, rest = text.partition("=")
    rest = rest if separator else name
    if not name.strip() or not rest.strip():
        raise ConfigError(f"{text!r}: write a field as NAME, NAME=KEY, NAME=FILE or NAME=FILE:KEY")
    channel = None
    indexed = _CHANNEL.match(rest)
    if indexed is not None:
        rest, channel = indexed[1], int(indexed[2])
        name = name if separator else f"{rest}.{channel}"
    before, colon, after = rest.rpartition(":")
    if separator and _is_raw(Path(rest)):
        return Source(name, "", Path(rest), channel)
    if colon and _is_raw(Path(before)):
        return Source(name, after, Path(before), channel)
    if separator and (colon or Path(rest).suffix in (".npy", ".npz", ".mat", ".h5", ".hdf5", ".nc", ".pt", ".zarr")):
        raise ConfigError(f"{text!r}: no such file {before or rest}")
    return Source(_short(name) if not separator else name, rest, None, channel)


def _is_raw(path: Path) -> bool:
    """A file or a Zarr store, and not any folder that happens to be called like a variable."""
    return path.is_file() or any((path / mark).is_file() for mark in ("zarr.json", ".zgroup", ".zarray"))


def _short(name: str) -> str:
    """`t0_fields/density` is called density."""
    return name.rstrip("/").rpartition("/")[2] or name


def parse_constant(text: str) -> Constant:
    name, separator, rest = text.partition("=")
    rest = rest if separator else name
    if not name.strip() or not rest.strip():
        raise ConfigError(f"--constant {text!r}: write NAME, NAME=KEY, NAME=@ATTRIBUTE or NAME=NUMBER")
    try:
        value = float(rest)
    except ValueError:
        return Constant(_short(name.removeprefix("@")), key=rest)
    if not math.isfinite(value):
        raise ConfigError(f"--constant {text}: expected a finite number")
    return Constant(name, value=value)
