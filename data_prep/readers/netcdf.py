"""HDF5 files whose dimensions have names and points: NetCDF-4, and any with dimension scales or labels."""

from typing import Any

import h5py

from geomano_hpc.data_prep.readers.dimensions import axes_of_dimensions, names_that_say_nothing, packing_of
from geomano_hpc.data_prep.readers.text import plain, plain_attributes
from geomano_hpc.data_prep.readers.variable import Coordinates, Layout, coordinates_of

_MOST_POINTS = 1 << 22  # of an axis; more are no points of a regular grid
_MOST_NEIGHBOURS = 1000  # of a scalar, that are asked whether the file is NetCDF


def within(group: h5py.Group, name: str) -> Any:
    """What is there, if it is in this file and no dangling link leads to it."""
    try:
        link = group.get(name, getlink=True)
        found = None if isinstance(link, h5py.ExternalLink) else group.get(name)
    except (KeyError, OSError, ValueError):
        return None
    return None if found is None or found.file.filename != group.file.filename else found


def is_netcdf(file: h5py.File, dataset: h5py.Dataset) -> bool:
    """Old files say so only by the dimensions of a variable; a scalar has none, so its neighbours are asked."""
    if "_NCProperties" in file.attrs or "DIMENSION_LIST" in dataset.attrs:
        return True
    if dataset.shape != () or len(file) > _MOST_NEIGHBOURS:
        return False
    neighbours = (within(file, name) for name in file)
    return any(one is not None and "DIMENSION_LIST" in one.attrs for one in neighbours)


def layout_of(dataset: h5py.Dataset) -> Layout:
    """Of a file whose dimensions have names: NetCDF-4, or any with dimension scales or labels."""
    scales = [dimension[0] if len(dimension) else None for dimension in dataset.dims]
    called = [
        dimension.label if scale is None else scale.name.rpartition("/")[2]
        for dimension, scale in zip(dataset.dims, scales, strict=True)
    ]
    axes = axes_of_dimensions(called)
    units = str(plain(dataset.attrs.get("units", "")))
    if axes is None:
        return Layout(units=units, dimensions=names_that_say_nothing(called))
    known = zip(axes, scales, dataset.shape, strict=True)
    found = {axis: _points(scale, size) for axis, scale, size in known if scale is not None}
    return Layout(axes, {axis: one for axis, one in found.items() if one is not None}, units=units)


def _points(scale: h5py.Dataset, size: int) -> Coordinates | None:
    """None where the dimension has a name and a size only: NetCDF writes that down as a scale of zeros."""
    without_values = str(plain(scale.attrs.get("NAME", ""))).startswith("This is a netCDF dimension but not")
    if without_values or scale.shape != (size,) or size > _MOST_POINTS:
        return None
    packing = packing_of(plain_attributes(scale.attrs.items()), scale.dtype)
    values = scale[()] if packing is None else packing(scale[()])
    return coordinates_of(values, str(plain(scale.attrs.get("units", ""))))
