"""The variables of a raw file as they can be told without reading values, with a guess of axes that are not said."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from geomano_hpc.data_prep.inspection.guesses import guessed_axes
from geomano_hpc.data_prep.readers import open_variable, variable_names
from geomano_hpc.data_prep.readers.dimensions import axes_of_dimensions
from geomano_hpc.data_prep.readers.variable import Coordinates
from geomano_hpc.errors import DataError

_MOST_OPENED = 1000  # opening a variable costs milliseconds


@dataclass(frozen=True)
class Described:
    """A variable; or, with `error`, why it cannot be read."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    stored_bytes: int = 0
    axes: tuple[str, ...] | None = None
    guessed: bool = False  # the axes are a guess, since the format does not say
    coordinates: dict[str, Coordinates] = field(default_factory=dict)
    boundary: dict[str, str] = field(default_factory=dict)
    units: str = ""
    components: tuple[str, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.axes or (), self.shape, strict=self.axes is not None))


def described_variables(path: Path) -> list[Described]:
    names = variable_names(path)
    variables = [_described(path, name) for name in names[:_MOST_OPENED]]
    variables += [Described(name, error="not looked at, since there are so many") for name in names[_MOST_OPENED:]]
    points = _named_like_axes(variables)
    return [one if one.axes is not None or one.error else _with_guess(one, points) for one in variables]


def _described(path: Path, name: str) -> Described:
    try:
        one = open_variable(path, name)
    except DataError as error:
        return Described(name, error=_reason(error, path, name))
    return Described(
        name,
        one.shape,
        str(one.dtype),
        one.stored_bytes,
        one.axes,
        False,
        one.coordinates,
        one.boundary,
        one.units,
        one.components,
        one.attributes,
    )


def _reason(error: DataError, path: Path, name: str) -> str:
    """Without what is on the line already: file and variable, and the doubt whether the file is complete."""
    cause = error.__cause__
    if isinstance(cause, ValueError):
        return str(cause)
    return str(error).removeprefix(f"{path}: ").removeprefix(f"{name!r} ")


def _named_like_axes(variables: Sequence[Described]) -> dict[str, int]:
    """Arrays with one axis, or in MATLAB with one that is longer than 1, that are called x, lon, time and so on."""
    found: dict[str, int] = {}
    for one in variables:
        axis = axes_of_dimensions([one.name])
        length = max(one.shape, default=0)
        if axis is not None and axis[0] in "txyz" and length > 1 and sum(size > 1 for size in one.shape) == 1:
            found.setdefault(axis[0], length)
    return found


def _with_guess(one: Described, points: dict[str, int]) -> Described:
    guess = guessed_axes(one.shape, points)
    return replace(one, axes=guess, guessed=guess is not None)
