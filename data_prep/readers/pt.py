"""Tensors of a `.pt` file, such as neuraloperator's {'x', 'y'}, without torch and without running anything from it.

torch.save writes a zip archive: `data.pkl` is a pickle that says which tensors there are, `data/0`, `data/1`, ... are
their values, uncompressed, so that they can be mapped into memory. A pickle can call any function of Python. Here, as
with torch.load(weights_only=True), it cannot: its opcodes are checked against a list before it runs, and the only names
that it may speak of are the ones by which torch.save describes a tensor, which mean functions of this file.
"""

import io
import pickle
import pickletools
import struct
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from geomano_hpc.data_prep.readers.variable import Mapped, Variable

_OPCODES = {
    *("PROTO", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("SETITEM", "SETITEMS", "APPEND", "APPENDS", "BINUNICODE", "SHORT_BINUNICODE", "NONE", "NEWTRUE", "NEWFALSE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    *("MEMOIZE", "GLOBAL", "BINPERSID", "REDUCE"),
}
_STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
    "ComplexFloatStorage": "<c8",
    "ComplexDoubleStorage": "<c16",
}
_MOST_PICKLE_BYTES = 1 << 20  # the description of two tensors has 300


@dataclass(frozen=True)
class _Storage:
    member: str
    dtype: str
    count: int


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _rebuild_tensor(storage: _Storage, offset: int, shape: Any, strides: Any, *_: Any) -> _Tensor:
    return _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


class _TensorsOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name.endswith("Storage") and name.isidentifier():
            return _STORAGES.get(name, name)  # of a type that numpy has not, the name: refused where it is read
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not part of a tensor of numbers")

    def persistent_load(self, identity: Any) -> _Storage:
        _, dtype, member, _, count = identity
        if not isinstance(dtype, str):
            raise pickle.UnpicklingError(f"it describes values of type {dtype!r}")
        return _Storage(str(member), dtype, int(count))


def is_torch(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/data.pkl") for name in archive.namelist())


def format_name(path: Path) -> str:
    return "torch.save (.pt)"


def names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return [str(key) for key, value in _content(archive).items() if isinstance(value, _Tensor)]


def variable(path: Path, key: str) -> Variable:
    with zipfile.ZipFile(path) as archive:
        tensor = _content(archive)[key]
        if tensor.storage.dtype not in _STORAGES.values():
            raise ValueError(f"holds {tensor.storage.dtype.removesuffix('Storage')} numbers: save it as float32")
        member = archive.getinfo(f"{_folder(archive)}/data/{tensor.storage.member}")
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError("its values are compressed, which torch.save never does")
        order = f"{_folder(archive)}/byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise ValueError("it was written on a big-endian machine")
    dtype, start = np.dtype(tensor.storage.dtype), _data_start(path, member)
    last = tensor.offset + sum((s - 1) * t for s, t in zip(tensor.shape, tensor.strides, strict=True))
    if min((*tensor.strides, tensor.offset, last), default=0) < 0 or (last + 1) * dtype.itemsize > member.file_size:
        raise ValueError(f"shape {tensor.shape} with strides {tensor.strides} lies outside of its values")
    if start + member.file_size > path.stat().st_size:
        raise EOFError("the file ends early")
    values = np.memmap(path, dtype, "r", start, (member.file_size // dtype.itemsize,))
    strides = [stride * dtype.itemsize for stride in tensor.strides]
    return Mapped(path, key, np.lib.stride_tricks.as_strided(values[tensor.offset :], tensor.shape, strides))


def _folder(archive: zipfile.ZipFile) -> str:
    return next(name for name in archive.namelist() if name.endswith("/data.pkl")).removesuffix("/data.pkl")


def _content(archive: zipfile.ZipFile) -> dict[str, Any]:
    info = archive.getinfo(f"{_folder(archive)}/data.pkl")
    if info.file_size > _MOST_PICKLE_BYTES:
        raise pickle.UnpicklingError(
            f"its description has {info.file_size} bytes; it is no dictionary of a few tensors"
        )
    text = archive.read(info)
    for opcode, argument, _ in pickletools.genops(text):
        if opcode.name not in _OPCODES:
            raise pickle.UnpicklingError(f"its pickle does {opcode.name} {argument or ''}: not needed for tensors")
    content = _TensorsOnly(io.BytesIO(text)).load()
    if not isinstance(content, dict):
        raise pickle.UnpicklingError(f"expected a dictionary of tensors, found {type(content).__name__}")
    return content


def _data_start(path: Path, member: zipfile.ZipInfo) -> int:
    """Behind the member's local header, whose last two lengths may differ from those in the archive's directory."""
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
    return int(member.header_offset + 30 + name + extra)
