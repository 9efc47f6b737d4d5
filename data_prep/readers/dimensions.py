"""Named dimensions, as NetCDF and xarray write them: which axis a dimension is, and how numbers are packed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# In lower case. A dimension of another name could be anything: then nothing is claimed of the variable's axes.
_NAMES = {
    "sample": (
        *("sample", "samples", "n", "member", "ensemble", "number", "realization", "realisation", "trajectory"),
        *("batch", "case", "run", "seed"),
    ),
    "t": ("t", "time", "times", "step", "steps", "timestep", "time_step", "frame", "valid_time"),
    "x": ("x", "lon", "longitude"),
    "y": ("y", "lat", "latitude"),
    "z": ("z", "lev", "level", "height", "depth", "altitude"),
    "c": ("c", "channel", "channels", "component", "components", "variable", "field"),
}
_AXES = {name: axis for axis, names in _NAMES.items() for name in names}

# What the NetCDF library writes where a program has written nothing.
NETCDF_FILL = 9.969209968386869e36


def axes_of_dimensions(dimensions: Sequence[str | None]) -> tuple[str, ...] | None:
    """None unless every dimension has a name that says its axis, and no axis is there twice."""
    axes = tuple(_AXES.get((name or "").lower(), "") for name in dimensions)
    return axes if "" not in axes and len(set(axes)) == len(axes) else None


def names_that_say_nothing(dimensions: Sequence[str | None]) -> tuple[str, ...]:
    """What a file calls dimensions of which not all are known as axes; () where it has no names for them of its own,
    or those that a library makes up."""
    named = [name or "" for name in dimensions]
    made_up = all(not name or name.rpartition("_")[0] in ("dim", "phony_dim") for name in named)
    return () if made_up else tuple(name or "?" for name in named)


@dataclass(frozen=True)
class Packing:
    """Values as they are meant: scaled and shifted, and NaN where the file says that a value is missing."""

    dtype: np.dtype
    scale: float
    offset: float
    missing: tuple[int | float, ...]
    unsigned: bool

    def __call__(self, stored: np.ndarray) -> np.ndarray:
        # Compared in the type of the file: a missing_value of 1e20 in double precision marks single ones as well.
        gone = np.zeros(stored.shape, bool)
        with np.errstate(over="ignore"):
            for value in self.missing:
                if stored.dtype.kind in "fc" or _fits(value, stored.dtype):
                    gone |= stored == np.asarray(value).astype(stored.dtype)
        values = stored.view(f"{stored.dtype.byteorder}u{stored.dtype.itemsize}") if self.unsigned else stored
        values = values.astype(self.dtype)
        if self.scale != 1:
            values *= self.dtype.type(self.scale)
        if self.offset != 0:
            values += self.dtype.type(self.offset)
        if gone.any():
            values[gone] = np.nan
        return values


def packing_of(attributes: Mapping[str, Any], stored: np.dtype, fill: float | None = None) -> Packing | None:
    """How a variable with these attributes is unpacked; None if its values are meant as they are.

    `fill` marks missing values beside those that the attributes name.
    """
    if stored.kind not in "fiuc":
        return None
    scale, offset = (_number(attributes, name) for name in ("scale_factor", "add_offset"))
    missing: list[int | float] = [] if fill is None else [fill]
    for name in ("_FillValue", "missing_value"):
        if name in attributes:
            missing += _numbers(attributes[name], name)
    unsigned = stored.kind == "i" and str(attributes.get("_Unsigned", "")).lower() == "true"
    if scale is None and offset is None and not missing and not unsigned:
        return None
    dtype = stored
    if unsigned:
        dtype = np.dtype(f"u{stored.itemsize}")
    if scale is not None or offset is not None or (missing and stored.kind in "iu"):
        packed = [np.asarray(attributes[name]).dtype for name in ("scale_factor", "add_offset") if name in attributes]
        small = np.dtype("f4") if stored.itemsize <= 2 else np.dtype("f8")
        dtype = np.result_type(dtype if dtype.kind in "fc" else small, *(one for one in packed if one.kind == "f"))
    return Packing(dtype, 1 if scale is None else scale, 0 if offset is None else offset, tuple(missing), unsigned)


def _fits(value: int | float, integer: np.dtype) -> bool:
    limits = np.iinfo(integer)
    return math.isfinite(value) and value == int(value) and limits.min <= value <= limits.max


def _number(attributes: Mapping[str, Any], name: str) -> int | float | None:
    if name not in attributes:
        return None
    numbers = _numbers(attributes[name], name)
    if len(numbers) != 1:
        raise ValueError(f"its attribute {name} holds {len(numbers)} numbers, one is expected")
    return numbers[0]


def _numbers(value: Any, name: str) -> list[int | float]:
    """Whole numbers stay whole: a double does not hold the largest of them."""
    try:
        return [int(one) if isinstance(one, int | np.integer) else float(one) for one in np.ravel(value)]
    except (TypeError, ValueError):
        raise ValueError(f"its attribute {name} is no number but {value!r}") from None
