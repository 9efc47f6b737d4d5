"""PDEBench's two layouts of HDF5, as its data sets are published.

One array of all samples, with the points of each axis beside it (`tensor`, or `density`, `Vx`, ...; `x-coordinate`), or
a group for each sample (`0000/data`) with the points in a group of it (`0000/grid/x`). Neither says what the axes are:
they follow from the name and the number of axes, and are claimed only if the points agree with the sizes.
"""

from collections.abc import Mapping
from typing import Any

import h5py

from geomano_hpc.data_prep.readers.variable import Layout, coordinates_of

_SUFFIX = "-coordinate"
_FLOW = ("Vx", "Vy", "Vz", "density", "pressure")
_TENSOR = {3: "sample t x", 4: "sample t x y", 5: "sample t x y c", 6: "sample t x y z c"}
# Incompressible flow: no points in it, but times for each sample.
_INCOMPRESSIBLE = {
    "velocity": "sample t x y c",
    "particles": "sample t x y c",
    "force": "sample x y c",
    "t": "sample t",
}


def is_pdebench(file: h5py.File) -> bool:
    return _has(file, "tensor") or _has(file, f"t{_SUFFIX}") or _is_incompressible(file)


def is_points(name: str) -> bool:
    return name.endswith(_SUFFIX)


def _is_incompressible(file: h5py.File) -> bool:
    return all(_has(file, name) for name in ("velocity", "particles", "t"))


def _has(file: h5py.File, name: str) -> bool:
    return isinstance(file.get(name), h5py.Dataset)


def layout_of(file: h5py.File, key: str) -> Layout:
    """Of a dataset that holds all samples."""
    points = {axis: file[axis + _SUFFIX] for axis in "txyz" if _has(file, axis + _SUFFIX)}
    shape = file[key].shape
    if key.endswith(_SUFFIX) and key[0] in points and len(shape) == 1:
        return _checked((key[0],), shape, {})
    return _checked(_axes(file, key, len(shape), points), shape, points)


def _axes(file: h5py.File, key: str, count: int, points: Mapping[str, Any]) -> tuple[str, ...]:
    if _is_incompressible(file):
        return tuple(_INCOMPRESSIBLE.get(key, "").split())
    if _has(file, "nu") and _has(file, "tensor"):  # Darcy: the coefficient beside the pressure, which has one channel
        return {"nu": ("sample", "x", "y"), "tensor": ("sample", "c", "x", "y")}.get(key, ())
    if count == 5 and (key in _FLOW or "z" in points):
        return ("sample", "t", "x", "y", "z")
    if count == 4 and "x" in points and "y" not in points:
        return ("sample", "t", "x", "c")
    return tuple(_TENSOR.get(count, "").split())


def seed_layout(group: h5py.Group, shape: tuple[int, ...]) -> Layout:
    """Of a dataset in the group of one sample, with the samples of all groups as the first axis."""
    if len(shape) == 1:  # a number of each sample
        return Layout(("sample",))
    grid = group.get("grid")
    points = {}
    if isinstance(grid, h5py.Group):
        points = {axis: grid[axis] for axis in "txyz" if _has(grid, axis)}
    axes = {3: "sample t x", 4: "sample t x c", 5: "sample t x y c", 6: "sample t x y z c"}.get(len(shape), "")
    if points:  # what has points, and a channel if there is one more axis than that
        axes = " ".join(("sample", *points, *("c" for _ in range(len(shape) - len(points) - 1))))
    return _checked(tuple(axes.split()), shape, points)


def _checked(axes: tuple[str, ...], shape: tuple[int, ...], points: Mapping[str, Any]) -> Layout:
    """Nothing is claimed where the points say otherwise. PDEBench's times are one more than its frames."""
    if len(axes) != len(shape) or len(set(axes)) != len(axes):
        return Layout()
    coordinates = {}
    for axis, size in zip(axes, shape, strict=True):
        if axis in points:
            if points[axis].shape != (size,) and not (axis == "t" and points[axis].shape == (size + 1,)):
                return Layout()
            found = coordinates_of(points[axis][()])
            if found is not None:
                coordinates[axis] = found
    return Layout(axes, coordinates)
