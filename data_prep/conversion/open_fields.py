"""Open the raw files of a conversion and check everything that can be checked without reading values."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from geomano_hpc.data_prep.conversion.axes import SPACE, grid_axes
from geomano_hpc.data_prep.conversion.found import Found
from geomano_hpc.data_prep.conversion.lattice import axes_in_store, time_in_store
from geomano_hpc.data_prep.conversion.raw_constants import read_constants
from geomano_hpc.data_prep.conversion.raw_field import Channel, RawField
from geomano_hpc.data_prep.conversion.raw_fields import RawFields, StoredArray, with_scattered
from geomano_hpc.data_prep.conversion.sources import Source
from geomano_hpc.data_prep.conversion.splits import split_of_files
from geomano_hpc.data_prep.conversion.usage import unused_variables, used_in_words, windows_of
from geomano_hpc.data_prep.problems import Problem, with_names_found
from geomano_hpc.data_prep.readers import has_no_names, open_variable, variable_names
from geomano_hpc.data_prep.store import ARRAYS, FRAMES, STATIC
from geomano_hpc.data_prep.store_card import Axis
from geomano_hpc.errors import ConfigError, DataError


@dataclass(frozen=True)
class Opened:
    """A problem whose files are open."""

    problem: Problem  # with the variables that were found
    fields: RawFields
    axes: tuple[Axis, ...]
    time: dict[str, object]
    files: list[Path]  # all that are read
    points: list[int]  # of the raw files along each axis of the arrays
    units: dict[str, str] = field(default_factory=dict)  # by field


def open_fields(sources: Sequence[Path], problem: Problem, roles: Sequence[str] = ()) -> Opened:
    """`roles`: of each raw file its split, where files are split; else the problem's rule splits all samples."""
    roles = roles or (("train", "test") if problem.protocol and len(sources) == 2 else ())
    if sources and any(one.file is None for one in (*problem.inputs, *problem.targets)):
        problem = with_names_found(problem, variable_names(sources[0]))
    _check_files(sources, problem)
    groups = [_open_group(source, problem, len(sources)) for source in (sources or (None,))]
    counts = [_samples_of(group, problem) for group in groups]
    splits = _splits(problem, roles, counts, groups)
    used = np.unique(np.concatenate(list(splits.values())))
    group_of = np.repeat(np.arange(len(counts)), counts)
    number_of = np.concatenate([np.arange(count) for count in counts])
    in_store = {name: np.searchsorted(used, numbers) for name, numbers in splits.items()}
    arrays = _arrays(groups, counts, problem)
    first = groups[0][-1]
    constants = read_constants(problem.constants, list(sources), counts)
    own = dict.fromkeys(one.file for one in (*problem.inputs, *problem.targets) if one.file)
    files = [*sources, *(file for file in own if file not in sources)]
    fields = RawFields(
        with_scattered(arrays, group_of[used], number_of[used]),
        in_store,
        group_of[used],
        number_of[used],
        constants[used],
        windows_of(problem, first),
        used_in_words(problem, groups[0], len(used), sum(counts)),
        unused_variables(files, problem, groups),
    )
    units = _units(problem, groups)
    sides = [first.sizes[axis] for axis in grid_axes(first.axes)]
    points = [1, *sides] if len(sides) == 1 else sides
    return Opened(problem, fields, axes_in_store(problem, groups), time_in_store(problem, groups), files, points, units)


def _units(problem: Problem, groups: list[list[Found]]) -> dict[str, str]:
    """By field. Files with other units of a field cannot be put behind each other."""
    units: dict[str, str] = {}
    for one in (found for group in groups for found in group if found.variable.units):
        name, found = one.source.name, one.variable.units
        if name not in problem.units and units.setdefault(name, found) != found:
            raise DataError(
                f"{one.where}: is in {found}, and in {units[name]} in the first file; bring them to the same units, or "
                f"say --units {name}=UNITS to take the numbers as they are"
            )
    return units | problem.units


def _check_files(sources: Sequence[Path], problem: Problem) -> None:
    """A file that stands twice would train and test on the same samples."""
    seen = [source.resolve() for source in sources]
    double = next((source for source, path in zip(sources, seen, strict=True) if seen.count(path) > 1), None)
    if double is not None and problem.protocol is None:
        raise ConfigError(f"{double}: is given twice, so the same samples would be in two places; give each file once")


def _open_group(source: Path | None, problem: Problem, sources: int) -> list[Found]:
    """All fields of one raw file, and of files that fields have of their own; the targets last."""
    found = []
    for role, some in (("input", problem.inputs), ("target", problem.targets)):
        for one in some:
            if one.file is not None and sources > 1:
                raise ConfigError(
                    f"{one.name}={one.file}: a field with a file of its own goes with one raw file, not {sources}"
                )
            path = one.file or source
            if path is None:
                raise ConfigError(f"{one.name}: no raw file is given, and the field has none of its own")
            variable = open_variable(path, _key_of(one, path, problem))
            if 0 in variable.shape:
                raise DataError(f"{path}: {variable.key!r} is empty: its shape is {variable.shape}")
            found.append(Found.of(one, role, variable, problem))
    return found


def _key_of(one: Source, path: Path, problem: Problem) -> str:
    """A .npy file has no names in it: where one field only is asked of the raw files, it is that of each of them."""
    of_raw_files = [source for source in (*problem.inputs, *problem.targets) if source.file is None]
    if one.file is None and len(of_raw_files) == 1 and has_no_names(path):
        return variable_names(path)[0]
    return one.key or _only_variable(path, one.name)


def _only_variable(path: Path, name: str) -> str:
    names = variable_names(path)
    if len(names) > 1 and name not in names:
        raise DataError(
            f"{path}: holds {len(names)} variables and none called {name!r}: say which with {name}={path}:KEY"
        )
    return name if name in names else names[0]


def _samples_of(group: list[Found], problem: Problem) -> int:
    """One, where no field has an axis of samples."""
    counts = {one.source.name: one.sizes["sample"] for one in group if "sample" in one.axes}
    first = next(iter(counts), "")
    for name, count in counts.items():
        if count != counts[first]:
            path = group[0].variable.path
            raise DataError(f"{path}: {first!r} has {counts[first]} samples but {name!r} has {count}")
    return counts.get(first, 1)


def _splits(
    problem: Problem, roles: Sequence[str], counts: list[int], groups: list[list[Found]]
) -> dict[str, np.ndarray]:
    what = "trajectories" if problem.stores_frames else "samples"
    where = groups[0][-1].where
    try:
        if roles:
            return split_of_files(roles, counts, problem.splits)
        return problem.splits.indices(sum(counts), what)
    except DataError as error:
        alone = what == "trajectories" and sum(counts) == 1
        advice = "; windows of one trajectory never train and test: cut it into files, such as a.h5 --test-file b.h5"
        raise DataError(f"{where}: {error}{advice * alone}") from None


def _arrays(groups: list[list[Found]], counts: list[int], problem: Problem) -> dict[str, StoredArray]:
    space = grid_axes(groups[0][-1].axes)
    grid = _grid(groups[0][-1], space, problem.stride)
    opened = [
        [_raw_field(one, space, grid, count, problem) for one in group]
        for group, count in zip(groups, counts, strict=True)
    ]
    if problem.channel is not None and not any("c" in one.axes for one in groups[0]):
        raise ConfigError(f"--channel {problem.channel}: no field has an axis of channels (see --axes)")
    names = [[channel.name for part in parts for channel in part.channels] for parts in opened]
    for group, other in zip(groups[1:], names[1:], strict=True):
        if other != names[0]:
            raise DataError(
                f"{group[0].variable.path}: has fields {', '.join(other)}, the first file {', '.join(names[0])}"
            )
    given = [parts[: len(problem.inputs)] for parts in opened]
    predicted = [parts[len(problem.inputs) :] for parts in opened]
    _check_names(given[0], predicted[0], problem)
    if problem.stores_frames:
        frames = len(predicted[0][0].frames)
        _check_frames(predicted, frames)
        arrays = {FRAMES: StoredArray(FRAMES, predicted, frames)}
        return arrays | ({STATIC: StoredArray(STATIC, given)} if problem.inputs else {})
    if problem.kind == "rollout":
        n = problem.frames_in
        pieces = (
            ([replace(part, frames=part.frames[:n]) for part in parts] for parts in predicted),
            ([replace(part, frames=part.frames[n:]) for part in parts] for parts in predicted),
        )
        return {
            name: StoredArray(name, list(parts), merges_time=True) for name, parts in zip(ARRAYS, pieces, strict=True)
        }
    return {
        name: StoredArray(name, parts, merges_time=True) for name, parts in zip(ARRAYS, (given, predicted), strict=True)
    }


def _check_names(given: list[RawField], predicted: list[RawField], problem: Problem) -> None:
    """What a model gets has names of its own, and so has what it predicts; units are of fields that are there."""
    inputs, targets = ([channel.name for part in parts for channel in part.channels] for parts in (given, predicted))
    inputs += [constant.name for constant in problem.constants]
    if problem.kind == "rollout":
        inputs += targets
    for names in (inputs, targets):
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise ConfigError(f"two fields are called {double}; name one otherwise, such as {double}2=KEY")
    known = {word for name in (*inputs, *targets) for word in (name, name.partition(".")[0])}
    strange = next((name for name in problem.field_axes if name not in known), None)
    if strange is not None:
        raise ConfigError(f"--axes {strange}={problem.field_axes[strange]}: no field is called so")
    strange = next((name for name in problem.units if name not in known), None)
    if strange is not None:
        raise ConfigError(
            f"--units {strange}={problem.units[strange]}: no field is called so, but {', '.join(targets)}"
        )


def _check_frames(groups: list[list[RawField]], frames: int) -> None:
    for parts in groups:
        for part in parts:
            if len(part.frames) != frames:
                raise DataError(f"{part.where}: gives {len(part.frames)} frames, the first field gives {frames}")


def _grid(target: Found, space: tuple[str, ...], stride: int) -> tuple[int, ...]:
    points = tuple(-(-target.sizes[axis] // stride) for axis in space)
    return (1, *points) if len(points) == 1 else points


def _raw_field(one: Found, space: tuple[str, ...], grid: tuple[int, ...], samples: int, problem: Problem) -> RawField:
    kept = {axis: -(-one.sizes[axis] // problem.stride) for axis in SPACE if axis in one.axes}
    expected = dict(zip(space, grid[-len(space) :], strict=True))
    if any(expected.get(axis) != points for axis, points in kept.items()):
        raise DataError(
            f"{one.where} gives a grid of {tuple(kept.values())} but the target gives {tuple(expected.values())}; are "
            "the axes as they should be (see --axes)?"
        )
    channels = _channels(one, problem)
    along = space if len(space) > 1 else ("", *space)
    return RawField(one.variable, one.axes, one.frames, channels, problem.stride, along, grid, samples)


def _channels(one: Found, problem: Problem) -> tuple[Channel, ...]:
    there, name = one.sizes.get("c", 1), one.source.name
    wanted = one.chosen_channel(problem)
    if wanted is not None and wanted >= there:
        raise DataError(f"{one.where}: has {there} channels, --channel {wanted} is not among them")
    if problem.protocol and problem.kind == "rollout" and there > 1 and wanted is None:
        raise DataError(f"{one.where}: a frame has {there} channels, one is expected; choose it with --channel")
    if wanted is not None:
        named = [(name, wanted)]
    elif there == 1:
        named = [(name, 0)]
    else:
        parts = one.variable.components or tuple(map(str, range(there)))
        named = [(f"{name}.{part}", index) for index, part in enumerate(parts)]
    if one.variable.dtype.kind != "c":
        return tuple(Channel(*pair) for pair in named)
    return tuple(Channel(f"{word}.{part}", index, part) for word, index in named for part in ("real", "imag"))
