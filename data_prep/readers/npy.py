"""NPY and NPZ files."""

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from geomano_hpc.data_prep.readers.variable import Layout, Mapped, Streamed, Variable


def npy_names(path: Path) -> list[str]:
    """A .npy file holds one array without a name: it answers to the name of the file."""
    return [path.stem]


def npy_variable(path: Path, key: str) -> Variable:
    return Mapped(path, key, np.load(path, mmap_mode="r", allow_pickle=False))


def npz_names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def npz_variable(path: Path, key: str) -> Variable:
    return NpzVariable(path, key)


class NpzVariable(Streamed):
    """A member of the archive, mostly compressed. zipfile compares the CRC-32 at the end of it."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as member:
            self.shape, fortran, self.dtype = _header(member)
            self.stored_bytes = archive.getinfo(f"{key}.npy").compress_size
        if self.dtype.hasobject:
            raise ValueError("it holds Python objects, not numbers")
        self.order = "F" if fortran else "C"
        self.say(Layout())

    def pieces(self, nbytes: Iterator[int]) -> Iterator[bytes | bytearray]:
        with zipfile.ZipFile(self.path) as archive, archive.open(f"{self.key}.npy") as member:
            _header(member)
            for wanted in nbytes:
                taken = member.read(wanted)
                if len(taken) < wanted:
                    raise EOFError(f"it ends early: shape {self.shape} needs {math.prod(self.shape)} values")
                yield taken
            member.read(1)


def _header(member: object) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(member)  # type: ignore[arg-type]
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(member)  # type: ignore[arg-type]
