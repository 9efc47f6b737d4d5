"""What of the raw files is used, in numbers, and what is not: nothing is cut or left out without a word."""

from collections.abc import Sequence
from pathlib import Path

from geomano_hpc.data_prep.conversion.axes import grid_axes
from geomano_hpc.data_prep.conversion.found import Found
from geomano_hpc.data_prep.problems import Problem
from geomano_hpc.data_prep.readers import variable_names
from geomano_hpc.data_prep.store_card import Windows


def windows_of(problem: Problem, target: Found) -> Windows | None:
    if problem.kind == "steady":
        return None
    frames = len(target.frames) if problem.stores_frames else problem.frames_in + problem.frames_out
    return Windows(problem.frames_in, problem.frames_out, frames, problem.window_stride or problem.frames_out)


def used_in_words(problem: Problem, group: Sequence[Found], used: int, there: int) -> list[str]:
    """Samples, points, frames, windows and channels of those there; `group` has the fields of one raw file."""
    target = group[-1]
    points = [target.sizes[axis] for axis in grid_axes(target.axes)]
    kept = [-(-size // problem.stride) for size in points]
    every = "" if problem.stride == 1 else f" (every {problem.stride}.)"
    words = [
        f"{used} of {there} {'trajectories' if problem.kind == 'rollout' else 'samples'}",
        f"{' x '.join(map(str, kept))} of {' x '.join(map(str, points))} points{every}",
    ]
    words += _frames_of_a_steady_problem(group) if problem.kind == "steady" else _frames_of_windows(problem, target)
    return words + _channels(problem, group)


def _frames_of_a_steady_problem(group: Sequence[Found]) -> list[str]:
    """The first is given, the last is the target."""
    found: dict[str, list[str]] = {}
    for one in group:
        frames = one.sizes.get("t", 1)
        if frames > 1:
            place = "first" if one.role == "input" else "last"
            found.setdefault(f"the {place} of {frames} frames of", []).append(one.source.name)
    return [f"{words} {', '.join(names)}" for words, names in found.items()]


def _frames_of_windows(problem: Problem, target: Found) -> list[str]:
    windows = windows_of(problem, target)
    assert windows is not None
    length = windows.frames_in + windows.frames_out
    seen = {start + n for start in windows.starts for n in range(length)}
    thinned = "" if problem.time_stride == 1 else f" (every {problem.time_stride}.)"
    shape = f"{len(windows.starts)} windows of {windows.frames_in} + {windows.frames_out}"
    return [f"{len(seen)} of {target.sizes['t']} frames{thinned} in {shape}"]


def _channels(problem: Problem, group: Sequence[Found]) -> list[str]:
    taken: dict[str, set[int]] = {}
    there: dict[str, int] = {}
    for one in group:
        key, channels = one.variable.key, one.sizes.get("c", 1)
        chosen = one.chosen_channel(problem)
        there[key] = channels
        taken.setdefault(key, set()).update(range(channels) if chosen is None else [chosen])
    return [f"{len(taken[key])} of {there[key]} channels of {key}" for key in taken if len(taken[key]) < there[key]]


def unused_variables(files: Sequence[Path], problem: Problem, groups: Sequence[Sequence[Found]]) -> list[str]:
    """Of all files that are read, what nothing asks for."""
    asked = {(one.variable.path, one.variable.key) for group in groups for one in group}
    constants = {one.key for one in problem.constants}
    found = [(file, name) for file in files for name in variable_names(file)]
    left = (name for file, name in found if (file, name) not in asked)
    return list(dict.fromkeys(name for name in left if not {name, name.rpartition("/")[2]} & constants))
