"""MATLAB v5 and v7 files, variable by variable and block by block, without holding a variable.

A file is a header of 128 bytes and then elements: a tag (type, number of bytes) and data. A variable is an element of
type miMATRIX, or that inside an element of type miCOMPRESSED (zlib); in it are elements again: flags, dimensions, name,
values. Values are column-major, so sample 0 of an array [sample, x, y] is spread over the whole variable, and it may be
stored in a smaller type than it has in MATLAB. scipy's loadmat reads a variable as a whole.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from geomano_hpc.data_prep.readers.remembered import remembered
from geomano_hpc.data_prep.readers.variable import Layout, Streamed, Variable

_HEADER_BYTES = 128
_MATRIX, _COMPRESSED = 14, 15
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_OTHER_CLASSES = {1: "a cell array", 2: "a struct", 3: "an object", 4: "text", 5: "a sparse matrix"}
_COMPLEX = 0x0800
_READ_BYTES = 1 << 20


class _Stream:
    """The bytes of one element of the file, inflated if they are compressed. A stream that ends early is an error."""

    def __init__(self, file: BinaryIO, start: int, size: int, compressed: bool) -> None:
        self._file, self._left = file, size
        self._inflate = zlib.decompressobj() if compressed else None
        file.seek(start)

    def take(self, count: int) -> bytearray:
        taken = bytearray()
        while len(taken) < count:
            part = self._next(count - len(taken))
            if not part:
                raise EOFError("the variable ends early")
            taken += part
        return taken

    def _next(self, most: int) -> bytes:
        if self._inflate is None:
            return self._raw(most)
        while True:
            part = self._inflate.decompress(self._inflate.unconsumed_tail or self._raw(_READ_BYTES), most)
            if part or self._inflate.eof or not (self._left or self._inflate.unconsumed_tail):
                return part

    def _raw(self, most: int) -> bytes:
        part = self._file.read(min(most, self._left))
        self._left -= len(part)
        return part

    def finish(self) -> None:
        """Read to the end, where zlib compares its checksum of everything that it gave out."""
        while self._inflate is not None and not self._inflate.eof:
            if not self._next(_READ_BYTES) and not self._inflate.eof:
                raise EOFError("the variable ends early")

    def tag(self, endian: str) -> tuple[int, int, bytes | None]:
        """Type, number of bytes, and the data itself where it is small enough to stand inside the tag."""
        head = bytes(self.take(8))
        kind, count = struct.unpack(f"{endian}II", head)
        if kind >> 16:
            return kind & 0xFFFF, kind >> 16, head[4 : 4 + (kind >> 16)]
        return kind, count, None

    def element(self, endian: str) -> tuple[int, bytes]:
        kind, count, inside = self.tag(endian)
        if inside is not None:
            return kind, inside
        return kind, bytes(self.take(-(-count // 8) * 8)[:count])


@dataclass(frozen=True)
class _Element:
    name: str
    start: int
    size: int
    compressed: bool
    endian: str
    class_number: int
    flags: int
    shape: tuple[int, ...]


def is_matlab(path: Path) -> bool:
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    return len(header) == _HEADER_BYTES and header[126:128] in (b"IM", b"MI") and header[:6] == b"MATLAB"


def names(path: Path) -> list[str]:
    return [element.name for element in _elements(path)]


def format_name(path: Path) -> str:
    return "MATLAB v7" if any(element.compressed for element in _elements(path)) else "MATLAB v5"


def variable(path: Path, key: str) -> Variable:
    element = next(element for element in _elements(path) if element.name == key)
    if element.class_number in _OTHER_CLASSES:
        raise ValueError(f"expected an array of numbers, found {_OTHER_CLASSES[element.class_number]}")
    return MatlabVariable(path, element)


@remembered
def _elements(path: Path) -> list[_Element]:
    size = path.stat().st_size
    found = []
    with path.open("rb") as file:
        endian = "<" if file.read(_HEADER_BYTES)[126:128] == b"IM" else ">"
        start = _HEADER_BYTES
        while start < size:
            file.seek(start)
            tag = file.read(8)
            if len(tag) < 8:
                raise EOFError(f"the file ends inside a tag at byte {start}")
            kind, count = struct.unpack(f"{endian}II", tag)
            if start + 8 + count > size:
                raise EOFError(f"the file has {size} bytes, its content needs {start + 8 + count}")
            if kind in (_MATRIX, _COMPRESSED):
                element = _describe(file, start + 8, count, kind == _COMPRESSED, endian)
                if element.name:  # MATLAB keeps data of its own under an empty name
                    found.append(element)
            start += 8 + count
    return found


def _describe(file: BinaryIO, start: int, size: int, compressed: bool, endian: str) -> _Element:
    stream = _Stream(file, start, size, compressed)
    flags, shape, name = _head(stream, compressed, endian)
    return _Element(name, start, size, compressed, endian, flags & 0xFF, flags, shape)


def _head(stream: _Stream, compressed: bool, endian: str) -> tuple[int, tuple[int, ...], str]:
    if compressed and stream.tag(endian)[0] != _MATRIX:
        return 0, (), ""
    flags = struct.unpack(f"{endian}II", stream.element(endian)[1])[0]
    dimensions = stream.element(endian)[1]
    shape = struct.unpack(f"{endian}{len(dimensions) // 4}i", dimensions)
    return flags, shape, stream.element(endian)[1].decode("ascii", "replace")


class MatlabVariable(Streamed):
    order = "F"

    def __init__(self, path: Path, element: _Element) -> None:
        self.path, self.key, self._element = path, element.name, element
        self._real = np.dtype(_CLASSES[element.class_number])
        self._is_complex = bool(element.flags & _COMPLEX)
        self.shape, self.dtype = element.shape, np.result_type(self._real, "c8") if self._is_complex else self._real
        self.stored_bytes = element.size
        self.say(Layout())

    def pieces(self, nbytes: Iterator[int]) -> Iterator[bytes | bytearray]:
        if not self._is_complex:
            yield from self._part(0, (wanted // self.dtype.itemsize for wanted in nbytes))
            return
        # All real parts lie before all imaginary ones, so the variable is read from two places at once.
        counts = [wanted // self.dtype.itemsize for wanted in nbytes]
        for real, imaginary in zip(self._part(0, iter(counts)), self._part(1, iter(counts)), strict=True):
            values = np.empty(len(real) // self._real.itemsize, self.dtype)
            values.real, values.imag = np.frombuffer(real, self._real), np.frombuffer(imaginary, self._real)
            yield values.tobytes()

    def _part(self, number: int, counts: Iterator[int]) -> Iterator[bytes | bytearray]:
        """Values of the real part (0) or of the imaginary one (1), cut into pieces of so many."""
        element = self._element
        with self.path.open("rb") as file:
            stream = _Stream(file, element.start, element.size, element.compressed)
            _head(stream, element.compressed, element.endian)
            for _ in range(number):
                self._skip(stream)
            kind, size, inside = stream.tag(element.endian)
            stored = np.dtype(element.endian + _STORED[kind])
            if size != math.prod(self.shape) * stored.itemsize:
                raise ValueError(f"shape {self.shape} needs {math.prod(self.shape)} values, found {size} bytes")
            for count in counts:
                taken = stream.take(count * stored.itemsize) if inside is None else bytearray(inside)
                if stored == self._real:
                    yield taken
                else:
                    yield np.frombuffer(taken, stored).astype(self._real).tobytes()
            stream.finish()

    def _skip(self, stream: _Stream) -> None:
        _, size, inside = stream.tag(self._element.endian)
        left = 0 if inside is not None else -(-size // 8) * 8
        while left > 0:
            left -= len(stream.take(min(left, _READ_BYTES)))
