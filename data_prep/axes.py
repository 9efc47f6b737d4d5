"""From the axes of a raw array to the store's [sample, x, y, channel].

A raw axis is `sample`, `x`, `y`, `t` (time) or `c` (channel). A 1D field is a grid of one row: its `x` becomes the
store's y, as the model's 1D domain expects.
"""

from collections.abc import Sequence

import numpy as np

from geomano_hpc.data_prep.problems import Problem
from geomano_hpc.errors import ConfigError, DataError

_NAMES = {"sample": "sample", "n": "sample", "x": "x", "y": "y", "t": "t", "time": "t", "c": "c", "channel": "c"}
_DEFAULTS = {"steady": {2: "sample x", 3: "sample x y"}, "rollout": {4: "sample x y t"}}
_EXPECTED = {"steady": "3 axes (samples, x, y)", "rollout": "4 axes (samples, x, y, time)"}


def parse_axes(text: str) -> tuple[str, ...]:
    """`"x y t sample"` -> the names, checked."""
    words = text.lower().split()
    unknown = [word for word in words if word not in _NAMES]
    if unknown:
        raise ConfigError(f"--axes {text!r}: {unknown[0]!r} is not an axis; there are sample, x, y, t and c")
    axes = tuple(_NAMES[word] for word in words)
    if len(set(axes)) != len(axes):
        raise ConfigError(f"--axes {text!r}: an axis appears twice")
    if not {"sample", "x"} <= set(axes):
        raise ConfigError(f"--axes {text!r}: 'sample' and 'x' must be among the axes")
    return axes


def axes_of(
    shape: Sequence[int], own: tuple[str, ...] | None, name: str, problem: Problem, where: str
) -> tuple[str, ...]:
    """The axes of a raw array: as the user says, else as its format says, else by their number."""
    if problem.axes is not None:
        texts = problem.axes.split(",")
        if len(texts) > 2:
            raise ConfigError(f"--axes {problem.axes!r}: one list of axes, or two with a comma between them")
        axes = parse_axes(texts[0] if name == "input" else texts[-1])
        if len(axes) != len(shape):
            raise DataError(f"{where}: --axes names {len(axes)} axes ({' '.join(axes)}), found shape {tuple(shape)}")
    elif own is not None:
        axes = own
    elif len(shape) in _DEFAULTS[problem.kind]:
        axes = tuple(_DEFAULTS[problem.kind][len(shape)].split())
    else:
        raise DataError(
            f"{where}: expected {_EXPECTED[problem.kind]}, found shape {tuple(shape)}; name other axes with --axes"
        )
    if problem.kind == "rollout" and "t" not in axes:
        raise DataError(f"{where}: a rollout needs an axis of time, found {' '.join(axes)} of shape {tuple(shape)}")
    return axes


def chosen(axes: Sequence[str], shape: Sequence[int], name: str, problem: Problem, where: str) -> dict[str, slice]:
    """What is kept along time and channel. A steady problem maps the first frame to the last."""
    size = dict(zip(axes, shape, strict=True))
    kept = {"t": slice(0, 1), "c": slice(0, size.get("c", 1))}
    if problem.kind == "rollout":
        frames = problem.input_frames + problem.target_frames
        if size["t"] < frames:
            raise DataError(f"{where}: has {size['t']} frames, {frames} are needed")
        kept["t"] = slice(0, problem.input_frames) if name == "input" else slice(problem.input_frames, frames)
    elif "t" in size:
        kept["t"] = slice(0, 1) if name == "input" else slice(size["t"] - 1, size["t"])
    if problem.channel is not None and "c" in size:
        if problem.channel >= size["c"]:
            raise DataError(f"{where}: has {size['c']} channels, --channel {problem.channel} is not among them")
        kept["c"] = slice(problem.channel, problem.channel + 1)
    elif problem.kind == "rollout" and size.get("c", 1) > 1:
        raise DataError(f"{where}: a frame has {size['c']} channels, one is expected; choose it with --channel")
    return kept


def to_store(values: np.ndarray, axes: Sequence[str], kept: dict[str, slice]) -> np.ndarray:
    """[the raw axes] -> float32 [sample, x, y, channel], where channel is time or channel."""
    values = values[tuple(kept.get(axis, slice(None)) for axis in axes)]
    grid = ("x", "y") if "y" in axes else ("", "x")
    order = ["sample", *grid, "t", "c"]
    present = [axis for axis in order if axis in axes]
    values = values.transpose([list(axes).index(axis) for axis in present])
    sizes = dict(zip(present, values.shape, strict=True))
    shape = (sizes["sample"], *(sizes.get(axis, 1) for axis in grid), sizes.get("t", 1) * sizes.get("c", 1))
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes Inf, which is looked for
        return np.ascontiguousarray(values.reshape(shape), dtype=np.float32)
