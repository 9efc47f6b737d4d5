"""Where points and frames of a store lie, and what is beyond the points: as the user says, else as the files do."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from geomano_hpc.data_prep.conversion.axes import SPACE, grid_axes
from geomano_hpc.data_prep.conversion.found import Found
from geomano_hpc.data_prep.problems import ALL_AXES, Problem
from geomano_hpc.data_prep.readers.variable import Coordinates
from geomano_hpc.data_prep.store_card import Axis
from geomano_hpc.errors import ConfigError, DataError

Said = TypeVar("Said")

_TOLERANCE = 1e-3  # of a step: as much as points of one axis may be off


def axes_in_store(problem: Problem, groups: Sequence[Sequence[Found]]) -> tuple[Axis, ...]:
    """`groups` has the fields of each raw file, the targets last."""
    target = groups[0][-1]
    there = grid_axes(target.axes)
    unknown = [name for name in (*problem.boundary, *problem.spacing) if name not in (*there, ALL_AXES)]
    if unknown and problem.protocol is None:
        raise ConfigError(f"--boundary, --spacing: the fields have no axis {unknown[0]}, but {', '.join(there)}")
    _check_same_points(problem, groups)
    axes = tuple(_axis(problem, target, name) for name in there)
    for axis in axes:
        points = target.sizes[axis.name]
        if problem.protocol is None and axis.boundary == "periodic" and points % problem.stride:
            raise ConfigError(
                f"--stride {problem.stride}: axis {axis.name} is periodic and has {points} points, which are not a "
                f"multiple of it: the last step would be shorter than the others; choose a stride that divides {points}"
            )
    return axes


def _axis(problem: Problem, target: Found, name: str) -> Axis:
    there, known = target.sizes[name], target.variable.coordinates.get(name)
    start, spacing, units = None, None, ""
    said = _said(problem.spacing, name)
    if said is not None:
        start, spacing = 0.0, said * problem.stride
    elif known is not None:
        if not known.even:
            raise DataError(
                f"{target.where}: its points along {name} are not evenly spaced, and a model takes regular grids; "
                f"interpolate them first, or say --spacing {name}=STEP to take them as if they were"
            )
        start, spacing, units = known.start, known.spacing * problem.stride if there > 1 else None, known.units
    elif problem.point_offset is not None:
        start, spacing = problem.point_offset / there, problem.stride / there
    boundary = _said(problem.boundary, name) or target.variable.boundary.get(name, "unknown")
    return Axis(name, -(-there // problem.stride), start, spacing, boundary, units)


def _said(by_axis: Mapping[str, Said], name: str) -> Said | None:
    return by_axis.get(name, by_axis.get(ALL_AXES))


def _check_same_points(problem: Problem, groups: Sequence[Sequence[Found]]) -> None:
    """Fields side by side, and samples behind each other, must be of the same points and frames."""
    for fields in groups:
        for one in fields:
            for name, points in one.variable.coordinates.items():
                if name == "sample":
                    _check_samples(problem, one, fields[-1])
                elif name in SPACE or one.role == "target":
                    _check_points(problem, name, points, one, groups[0][-1])


def _check_samples(problem: Problem, one: Found, target: Found) -> None:
    """Within a file, and in files that fields have of their own, the same place must be the same sample."""
    points, known = (found.variable.coordinates.get("sample") for found in (one, target))
    named = problem.axes is not None or one.source.name in problem.field_axes
    if points is not None and known is not None and points.digest != known.digest and not named:
        raise DataError(
            f"{one.where}: its samples are not numbered as those of {target.where} ({_in_words(points)}; "
            f"{_in_words(known)}); bring them into the same order, or name the axes with --axes to take them by place"
        )


def _check_points(problem: Problem, name: str, points: Coordinates, one: Found, first: Found) -> None:
    known = first.variable.coordinates.get(name)
    said = problem.time_step if name == "t" else _said(problem.spacing, name)
    if known is None or said is not None or _same(points, known, from_the_same_start=name != "t"):
        return
    say = "--time-step STEP" if name == "t" else f"--spacing {name}=STEP"
    raise DataError(
        f"{one.where}: its points along {name} are {_in_words(points)}, those of {first.where} {_in_words(known)}; "
        f"bring them onto the same points, or say {say} to take them as if they were"
    )


def _in_words(points: Coordinates) -> str:
    return f"{points.start:.6g} and on by {points.spacing:.6g} {points.units}".rstrip()


def _same(one: Coordinates, other: Coordinates, from_the_same_start: bool) -> bool:
    """Trajectories may begin at other times, each of which may be said in units that count from there."""
    units = [points.units.partition(" since ")[0] for points in (one, other)]
    if all(units) and units[0] != units[1]:
        return False
    allowed = _TOLERANCE * abs(other.spacing)
    steps_agree = math.isclose(one.spacing, other.spacing, rel_tol=_TOLERANCE)
    starts_agree = abs(one.start - other.start) <= allowed + 1e-6 * abs(other.start)
    return steps_agree and (starts_agree or not from_the_same_start)


def time_in_store(problem: Problem, groups: Sequence[Sequence[Found]]) -> dict[str, object]:
    """The step between two frames of the store."""
    if problem.kind == "steady":
        return {"step": None, "units": ""}
    target = groups[0][-1]
    known = target.variable.coordinates.get("t")
    if problem.time_step is not None:
        return {"step": problem.time_step * problem.time_stride, "units": "" if known is None else known.units}
    if known is None:
        return {"step": None, "units": ""}
    if not known.even:
        raise DataError(
            f"{target.where}: its frames are not evenly spaced in time; say --time-step to take them as if they were"
        )
    return {"step": known.spacing * problem.time_stride, "units": known.units}
