"""The Well's layout of HDF5 (PolymathicAI/the_well, docs/data_format.md): the file says everything of its fields.

Scalars, vectors and tensors are in groups t0_fields, t1_fields and t2_fields; flags say along which axes a field
varies, and a field has no others.
"""

from typing import Any

import h5py
import numpy as np

from geomano_hpc.data_prep.readers.text import plain
from geomano_hpc.data_prep.readers.variable import Coordinates, Layout, coordinates_of

_FIELDS = ("t0_fields", "t1_fields", "t2_fields", "scalars")
HIDDEN = ("dimensions", "boundary_conditions")
_BOUNDARIES = ("periodic", "wall", "open")
_MOST_TIMES = 1 << 24  # of all samples together; more are not read to compare them


def is_well(file: h5py.File) -> bool:
    dimensions = file.get("dimensions")
    return (
        isinstance(dimensions, h5py.Group)
        and "spatial_dims" in dimensions.attrs
        and any(isinstance(file.get(name), h5py.Group) for name in _FIELDS[:3])
    )


def full_name(file: h5py.File, key: str) -> str | None:
    """`density` -> `t0_fields/density`, if one field only has that name."""
    found = [f"{group}/{key}" for group in _FIELDS if isinstance(file.get(f"{group}/{key}"), h5py.Dataset)]
    return found[0] if len(found) == 1 else None


def layout_of(file: h5py.File, key: str) -> Layout:
    group, _, _ = key.partition("/")
    dataset = file[key]
    if group not in _FIELDS:
        return Layout()
    names = [str(name) for name in plain(file["dimensions"].attrs["spatial_dims"])]
    axis_of = _axes_of(names)
    varies = [True] * len(names) if group != "scalars" else [False] * len(names)
    if group != "scalars" and "dim_varying" in dataset.attrs:
        varies = [bool(one) for one in np.ravel(dataset.attrs["dim_varying"])]
    axes = [
        *(["sample"] if _flag(dataset, "sample_varying") else []),
        *(["t"] if _flag(dataset, "time_varying") else []),
        *(axis_of[name] for name, there in zip(names, varies, strict=True) if there),
    ]
    rank = int(group[1]) if group != "scalars" else 0
    if len(axes) + rank != len(dataset.shape):
        raise ValueError(f"its flags say {' '.join(axes)} and {rank} axes of components, its shape is {dataset.shape}")
    components: tuple[str, ...] = ()
    if rank:
        axes.append("c")
        if set(dataset.shape[-rank:]) == {len(names)}:
            components = tuple(names) if rank == 1 else tuple(row + column for row in names for column in names)
    return Layout(
        tuple(axes),
        _coordinates(file["dimensions"], axis_of),
        _boundary(file, axis_of),
        str(plain(dataset.attrs.get("units", ""))),
        components,
        max(1, rank),
    )


def _axes_of(names: list[str]) -> dict[str, str]:
    """By name where all are called x, y, z; else by order, such as phi and theta on a sphere."""
    usual = ["x", "y", "z"][: len(names)]
    return dict(zip(names, names if set(names) == set(usual) else usual, strict=True))


def _flag(item: Any, name: str) -> bool:
    return bool(np.all(item.attrs.get(name, False)))


def _coordinates(dimensions: h5py.Group, axis_of: dict[str, str]) -> dict[str, Coordinates]:
    """Points that differ from sample to sample are the points of no sample: nothing is said of them."""
    found = {}
    for name, axis in {"time": "t", **axis_of}.items():
        dataset = dimensions.get(name)
        if not isinstance(dataset, h5py.Dataset) or dataset.size > _MOST_TIMES:
            continue
        points = dataset[()]
        if points.ndim == 2 and len(points) and (points == points[:1]).all():
            points = points[0]
        one = coordinates_of(points, str(plain(dataset.attrs.get("units", ""))))
        if one is not None:
            found[axis] = one
    return found


def _boundary(file: h5py.File, axis_of: dict[str, str]) -> dict[str, str]:
    """Of an axis whose two ends are alike. An obstacle inside of the domain is said to be of several axes."""
    kinds: dict[str, set[str]] = {}
    group = file.get("boundary_conditions")
    for condition in group.values() if isinstance(group, h5py.Group) else ():
        kind = str(plain(condition.attrs.get("bc_type", ""))).lower()
        names = [str(name) for name in np.ravel(plain(condition.attrs.get("associated_dims", [])))]
        if len(names) == 1 or kind == "periodic":
            for name in names:
                kinds.setdefault(axis_of.get(name, ""), set()).add(kind)
    return {
        axis: next(iter(kind)) for axis, kind in kinds.items() if axis and len(kind) == 1 and kind <= set(_BOUNDARIES)
    }
