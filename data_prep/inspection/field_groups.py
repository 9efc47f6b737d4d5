"""Which fields of a raw file go together: on the same points, of the same samples and frames."""

import math
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from geomano_hpc.data_prep.conversion.axes import SPACE
from geomano_hpc.data_prep.inspection.described import Described

# Of input and target, as people call them.
_PAIRS = (
    *(("coeff", "sol"), ("nu", "tensor"), ("a", "u"), ("x", "y"), ("k", "p"), ("k", "u"), ("f", "u"), ("a", "p")),
    *(("input", "target"), ("inputs", "targets"), ("input", "output"), ("inputs", "outputs")),
    *(("coefficient", "solution"), ("features", "labels")),
)
_UNSPEAKABLE = re.compile(r"\[\d+\]$|^@|:")  # which mean something else on the command line
_MOST_OUT, _USUAL = 20, 10
_SMALL = 0.01  # of the largest group: no field of its own, but something that describes the others


@dataclass(frozen=True)
class Group:
    kind: str  # steady or rollout
    inputs: list[Described]
    targets: list[Described]
    check: list[str] = field(default_factory=list)
    other_needed: str = ""  # the option of a field that is in another file

    @property
    def _first(self) -> Described:
        return (self.targets or self.inputs)[0]

    @property
    def samples(self) -> int:
        return max(one.sizes.get("sample", 1) for one in (*self.inputs, *self.targets))

    @property
    def frames(self) -> int:
        return self._first.sizes.get("t", 1)

    @property
    def guessed(self) -> bool:
        return self._first.guessed

    @property
    def axes_in_words(self) -> str:
        """Of the inputs and of the targets, where they differ."""
        words = [" ".join(some[0].axes or ()) for some in (self.inputs, self.targets) if some]
        return ",".join(dict.fromkeys(words))

    @property
    def uneven(self) -> list[str]:
        needed = SPACE if self.kind == "steady" else (*SPACE, "t")
        return [axis for axis, points in self._first.coordinates.items() if axis in needed and not points.even]


def groups_of(variables: Sequence[Described]) -> list[Group]:
    """The largest first. Fields that change in time are predicted from their own frames, with fields that do not change
    beside them; without such fields, one maps to the other."""
    fields = [one for one in variables if _is_field(one)]
    moving = _alike([one for one in fields if one.sizes.get("t", 1) > 1], with_time=True)
    still = [one for one in fields if "t" not in one.sizes]
    found = [Group("rollout", _beside(some, still), some) for some in moving]
    beside = {one.name for group in found for one in group.inputs}
    rest = [one for one in fields if one.sizes.get("t", 1) == 1 and one.name not in beside]
    found += [group for some in _alike(rest, with_time=False) if (group := _steady(some)) is not None]
    pairs = [group for group in found if not group.other_needed]
    found = pairs or found[:1]
    found.sort(key=_bytes, reverse=True)
    return [group for group in found if _bytes(group) >= _SMALL * _bytes(found[0])]


def _is_field(one: Described) -> bool:
    axes = one.axes or ()
    readable = not one.error and 0 not in one.shape and not _UNSPEAKABLE.search(one.name)
    return readable and any(axis in axes for axis in SPACE) and (not one.guessed or "x" in axes)


def _bytes(group: Group) -> int:
    return sum(math.prod(one.shape) for one in (*group.inputs, *group.targets))


def _alike(fields: Sequence[Described], with_time: bool) -> list[list[Described]]:
    found: dict[Hashable, list[Described]] = {}
    for one in fields:
        found.setdefault(_lattice(one, with_time), []).append(one)
    return list(found.values())


def _lattice(one: Described, with_time: bool) -> Hashable:
    """What two fields have in common that stand side by side in a store."""
    sizes = {axis: one.sizes.get(axis) for axis in (*SPACE, "sample", *(["t"] if with_time else []))}
    return (*sizes.items(), one.guessed, _points(one, with_time), one.axes if one.guessed and with_time else ())


def _points(one: Described, with_time: bool) -> tuple[tuple[str, str], ...]:
    kept = {axis: points for axis, points in one.coordinates.items() if with_time or axis != "t"}
    return tuple(sorted((axis, f"{points.start:.5g} {points.spacing:.5g}") for axis, points in kept.items()))


def _beside(targets: Sequence[Described], still: Sequence[Described]) -> list[Described]:
    """Fields that do not change in time, on the points of those that do; nothing that rests on a guess."""
    first = targets[0]
    if first.guessed:
        return []
    known = dict(_points(first, False))

    def fits(one: Described) -> bool:
        sizes = {axis: size for axis, size in one.sizes.items() if axis in (*SPACE, "sample")}
        points_agree = all(known.get(axis, words) == words for axis, words in _points(one, False))
        return not one.guessed and points_agree and all(first.sizes.get(axis) == size for axis, size in sizes.items())

    return [one for one in still if fits(one)]


def _steady(fields: list[Described]) -> Group | None:
    """A pair by its names, else by its order."""
    by_name = {one.name.rpartition("/")[2].lower(): one for one in fields}
    for given, target in _PAIRS:
        if given in by_name and target in by_name:
            return Group("steady", [by_name[given]], [by_name[target]])
    if len(fields) == 1:
        is_input = fields[0].name.lower() in {given for given, _ in _PAIRS}
        if is_input:
            return Group("steady", fields, [], other_needed="--target")
        return Group("steady", [], fields, other_needed="--input")
    inputs, targets = fields[:-1], fields[-1:]
    if fields[0].guessed and len({one.axes for one in inputs}) > 1:
        inputs = [one for one in inputs if one.axes == inputs[0].axes]
    which = "which field is given and which is to be predicted is a guess: exchange --input and --target as needed"
    return Group("steady", inputs, targets, [which])


def frames_in_and_out(frames: int) -> tuple[int, int]:
    """Windows that leave no frame out: of about ten frames that are given and ten that are predicted."""
    best, fitness = (1, frames - 1), (-1, 0, 0)
    for given in range(1, max(1, min(_USUAL, frames // 2)) + 1):
        left = frames - given
        for predicted in range(given, min(_MOST_OUT, left) + 1):
            fit = (min(predicted, _USUAL), given, -predicted)
            if left % predicted == 0 and fit > fitness:
                best, fitness = (given, predicted), fit
    return best
