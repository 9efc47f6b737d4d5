"""The axes of a raw array: their names, and how they are brought into the order of a store.

A raw axis is `sample`, `x`, `y`, `z`, `t` (time) or `c` (channel). A 1D field is a grid of one row: its `x` becomes the
store's second axis, as the model's 1D domain expects.
"""

from collections.abc import Sequence

import numpy as np

from geomano_hpc.data_prep.problems import Problem
from geomano_hpc.data_prep.readers.variable import Variable
from geomano_hpc.errors import ConfigError, DataError

SPACE = ("x", "y", "z")
_NAMES = {"sample": "sample", "n": "sample", "t": "t", "time": "t", "c": "c", "channel": "c"} | {
    axis: axis for axis in SPACE
}
# By the number of axes, where nobody says. For one's own rollouts nothing: time may be first or last.
_DEFAULTS = {"steady": {2: "sample x", 3: "sample x y"}, "rollout": {4: "sample x y t"}}
_EXPECTED = {"steady": "3 axes (samples, x, y)", "rollout": "4 axes (samples, x, y, time)"}


def parse_axes(text: str) -> tuple[str, ...]:
    """`"x y t sample"` -> the names, checked."""
    words = text.lower().split()
    unknown = [word for word in words if word not in _NAMES]
    if unknown:
        raise ConfigError(f"--axes {text!r}: {unknown[0]!r} is not an axis; there are sample, x, y, z, t and c")
    axes = tuple(_NAMES[word] for word in words)
    if len(set(axes)) != len(axes):
        raise ConfigError(f"--axes {text!r}: an axis appears twice")
    if "x" not in axes:
        raise ConfigError(f"--axes {text!r}: 'x' must be among the axes")
    return axes


def axes_of(variable: Variable, name: str, role: str, problem: Problem, where: str) -> tuple[str, ...]:
    """The axes of a raw array: as the user says, else as its format says, else by their number. `role` is input or
    target."""
    shape, own, said = variable.shape, variable.axes, _said(name, role, problem)
    if said is not None:
        axes = parse_axes(said)
        if len(axes) != len(shape):
            raise DataError(f"{where}: --axes names {len(axes)} axes ({' '.join(axes)}), found shape {tuple(shape)}")
    elif own is not None:
        axes = own
    elif variable.dimensions and problem.protocol is None:
        raise DataError(
            f"{where}: calls its dimensions {', '.join(variable.dimensions)}, which does not say which axes they are; "
            f"name them, such as --axes {name}='sample x y'"
        )
    elif problem.kind == "rollout" and problem.protocol is None:
        raise DataError(
            f"{where}: has shape {tuple(shape)}, and nothing says which axis is time; name the axes with --axes, such "
            "as --axes 'sample t x y'"
        )
    elif len(shape) in _DEFAULTS[problem.kind]:
        axes = tuple(_DEFAULTS[problem.kind][len(shape)].split())
    else:
        raise DataError(
            f"{where}: expected {_EXPECTED[problem.kind]}, found shape {tuple(shape)}; name other axes with --axes"
        )
    if problem.kind == "rollout" and role == "target" and "t" not in axes:
        raise DataError(f"{where}: a rollout needs an axis of time, found {' '.join(axes)} of shape {tuple(shape)}")
    return axes


def _said(name: str, role: str, problem: Problem) -> str | None:
    if name in problem.field_axes or problem.axes is None:
        return problem.field_axes.get(name)
    texts = problem.axes.split(",")
    if len(texts) > 2:
        raise ConfigError(f"--axes {problem.axes!r}: one list of axes, or two with a comma between them")
    return texts[0] if role == "input" else texts[-1]


def frames_of(axes: Sequence[str], shape: Sequence[int], role: str, problem: Problem, where: str) -> range:
    """The frames that are kept. A steady problem maps the first frame to the last."""
    there = dict(zip(axes, shape, strict=True)).get("t")
    if there is None:
        return range(1)
    if problem.kind == "steady":
        return range(1) if role == "input" else range(there - 1, there)
    if role == "input":
        raise DataError(
            f"{where}: has an axis of time; a field that changes in time is predicted: name it with --field"
        )
    frames = range(0, there, problem.time_stride)
    needed = problem.frames_in + problem.frames_out
    if len(frames) < needed:
        every = "" if problem.time_stride == 1 else f", every {problem.time_stride}. of which gives {len(frames)}"
        raise DataError(f"{where}: has {there} frames{every}, {needed} are needed")
    return frames[:needed] if problem.protocol is not None else frames


def grid_axes(axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(axis for axis in SPACE if axis in axes)


def arranged(values: np.ndarray, axes: Sequence[str], order: Sequence[str]) -> np.ndarray:
    """The array with its axes in this order; those that it does not have get one element."""
    present = [axis for axis in order if axis in axes]
    values = values.transpose([list(axes).index(axis) for axis in present])
    sizes = dict(zip(present, values.shape, strict=True))
    return values.reshape([sizes.get(axis, 1) for axis in order])
