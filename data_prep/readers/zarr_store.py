"""Zarr stores of other programs, version 2 or 3, with the names of dimensions that xarray writes."""

import base64
import binascii
import logging
import math
import struct
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from geomano_hpc.data_prep.readers.chunked import Chunked
from geomano_hpc.data_prep.readers.dimensions import axes_of_dimensions, names_that_say_nothing, packing_of
from geomano_hpc.data_prep.readers.text import plain, plain_attributes
from geomano_hpc.data_prep.readers.variable import Constant, Coordinates, Layout, Variable, coordinates_of

logger = logging.getLogger(__name__)

_MARKS = ("zarr.json", ".zgroup", ".zarray")
_MOST_POINTS = 1 << 22  # of an axis
_DIMENSIONS = "_ARRAY_DIMENSIONS"  # in version 2, which has no place for them


def is_zarr(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in _MARKS)


def names(path: Path) -> list[str]:
    """Of what may be a field; the points of axes, arrays called like their one dimension, are left out."""
    arrays = _arrays(path)
    return [name for name, array in arrays.items() if _dimensions(array) != (name.rpartition("/")[2],)]


def attributes(path: Path) -> dict[str, Any]:
    return plain_attributes(zarr.open(path, mode="r").attrs.items())


def variable(path: Path, key: str) -> Variable:
    """KeyError where there is none of that name. `@name` is an attribute of the store."""
    if key.startswith("@"):
        return Constant(path, key, np.asarray(zarr.open(path, mode="r").attrs[key[1:]]))
    opened = zarr.open(path, mode="r")
    if isinstance(opened, zarr.Array):
        return ZarrVariable(path, key, {path.stem: opened}[key], None)
    array = opened[key]
    if not isinstance(array, zarr.Array):
        raise KeyError(key)
    return ZarrVariable(path, key, array, opened)


def format_name(path: Path) -> str:
    return f"Zarr, version {zarr.open(path, mode='r').metadata.zarr_format}"


def _arrays(path: Path) -> dict[str, zarr.Array[Any]]:
    opened = zarr.open(path, mode="r")
    if isinstance(opened, zarr.Array):
        return {path.stem: opened}
    return {name: item for name, item in sorted(opened.members(max_depth=None)) if isinstance(item, zarr.Array)}


def _dimensions(array: zarr.Array[Any]) -> tuple[str | None, ...] | None:
    found = array.metadata.dimension_names if array.metadata.zarr_format == 3 else array.attrs.get(_DIMENSIONS)
    return None if found is None else tuple(None if name is None else str(name) for name in found)  # type: ignore[union-attr]


class ZarrVariable(Chunked):
    def __init__(self, path: Path, key: str, array: zarr.Array[Any], group: zarr.Group | None) -> None:
        self.path, self.key, self._array = path, key, array
        self.attributes = {name: value for name, value in _attributes(array).items() if name != _DIMENSIONS}
        self.stored_bytes = math.prod(array.shape) * array.dtype.itemsize
        packing = packing_of(self.attributes, array.dtype, _fill_of_version_2(array))
        self.describe(
            array.shape,
            array.dtype,
            array.shards or array.chunks,
            _layout(key, array, group),
            decoding=None if packing is None else (packing.dtype, packing),
        )

    def _opened(self) -> AbstractContextManager[zarr.Array[Any]]:
        return nullcontext(self._array)

    def check_complete(self) -> None:
        """A chunk whose file is missing reads as the fill value, and nobody can tell whether it was ever written."""
        there, all_of_them = self._array.nchunks_initialized, self._array.nchunks
        if there < all_of_them:
            logger.warning(
                "%s: %r has %d of its %d chunks; the others are read as its fill value %s, which is right if they "
                "were left out because they hold nothing else, and wrong if they were lost",
                self.path,
                self.key,
                there,
                all_of_them,
                self._array.fill_value,
            )


def _attributes(array: zarr.Array[Any]) -> dict[str, Any]:
    """xarray writes a `_FillValue` of version 3 as base64, since JSON has no NaN."""
    found = plain_attributes(array.attrs.items())
    fill = found.get("_FillValue")
    if isinstance(fill, str):
        try:
            found["_FillValue"] = struct.unpack("<d", base64.standard_b64decode(fill))[0]
        except (binascii.Error, struct.error):
            found.pop("_FillValue")
    return found


def _fill_of_version_2(array: zarr.Array[Any]) -> float | None:
    """There xarray keeps the mark of missing values as the fill value of the array, and writes no array without one
    that has none."""
    if array.metadata.zarr_format != 2 or _DIMENSIONS not in array.attrs or array.fill_value is None:
        return None
    return float(array.fill_value) if array.dtype.kind in "fiu" else None


def _layout(key: str, array: zarr.Array[Any], group: zarr.Group | None) -> Layout:
    called = _dimensions(array)
    axes = None if called is None else axes_of_dimensions(called)
    units = str(plain(array.attrs.get("units", "")))
    if called is None or axes is None:
        return Layout(units=units, dimensions=names_that_say_nothing(called or ()))
    folder = key.rpartition("/")[0]
    found: dict[str, Coordinates | None] = {}
    for axis, name, size in zip(axes, called, array.shape, strict=True):
        points = None if group is None else group.get(f"{folder}/{name}" if folder else str(name))
        if isinstance(points, zarr.Array) and points.shape == (size,) and size <= _MOST_POINTS:
            found[axis] = coordinates_of(np.asarray(points[:]), str(plain(points.attrs.get("units", ""))))
    return Layout(axes, {axis: one for axis, one in found.items() if one is not None}, units=units)
