"""The commands of `geomano data convert` that would fit a raw file, and what to check before one of them is run."""

import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geomano_hpc.data_prep.inspection.constant_hints import constant_words, hints
from geomano_hpc.data_prep.inspection.described import Described
from geomano_hpc.data_prep.inspection.field_groups import Group, frames_in_and_out, groups_of
from geomano_hpc.data_prep.problems import BENCHMARK, BENCHMARK_SIZES

_MOST_GROUPS, _MOST_FIELDS = 3, 24


@dataclass(frozen=True)
class Suggestion:
    title: str
    words: list[list[str]]  # of the command; those of one list stay on one line
    check: list[str] = field(default_factory=list)
    runs: bool = True  # as it stands; else `check` says what is missing

    @property
    def command(self) -> str:
        return " ".join(shlex.join(part) for part in self.words)

    def to_json(self) -> dict[str, Any]:
        arguments = [word for part in self.words for word in part]
        named = {"title": self.title, "command": self.command, "arguments": arguments}
        return {**named, "check": self.check, "runs": self.runs}

    def lines(self, width: int) -> list[str]:
        found = [""]
        for part in map(shlex.join, self.words):
            if found[-1].strip() and len(found[-1]) + len(part) > width - 5:
                found[-1] += " \\"
                found.append("   ")
            found[-1] += f" {part}"
        checks = [
            textwrap.fill(f"- {text}", width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
            for text in self.check
        ]
        return [f"{self.title}:", *(f" {line}" for line in found), *checks]


def suggestions(path: Path, variables: Sequence[Described], attributes: dict[str, Any]) -> list[Suggestion]:
    if "geomano" in attributes:
        return [Suggestion("This is a prepared store, to train with", [["geomano", "data", "info", str(path)]])]
    found = _of_the_benchmark(path, variables)
    groups = groups_of(variables)
    named = {one.name for group in groups[:_MOST_GROUPS] for one in (*group.inputs, *group.targets)}
    fields = [one for one in variables if not one.error and one.axes and {"x", "y", "z"} & set(one.axes)]
    left = [one.name for one in fields if one.name not in named]
    for number, group in enumerate(groups[:_MOST_GROUPS]):
        found.append(_suggestion(path, group, number, variables, attributes, left))
    return found


def _suggestion(
    path: Path,
    group: Group,
    number: int,
    variables: Sequence[Described],
    attributes: dict[str, Any],
    left: Sequence[str],
) -> Suggestion:
    steady = group.kind == "steady"
    names = _Names()
    words, check = [["geomano", "data", "convert", str(path)], ["--problem", group.kind]], list(group.check)
    runs = True
    if group.samples < 2:
        words[0].append("ANOTHER_FILE")
        runs = False
        what = "sample" if steady else "trajectory"
        check.append(f"one {what} cannot be split: put files with others in the place of ANOTHER_FILE")
    for option, some in (("--input", group.inputs), ("--target" if steady else "--field", group.targets)):
        words += [[option, names.word(one.name)] for one in some[:_MOST_FIELDS]]
        if len(some) > _MOST_FIELDS:
            check.append(f"the command has {_MOST_FIELDS} of {len(some)} fields for {option}; --json lists all names")
    if group.other_needed:
        words.append([group.other_needed, f"NAME=ANOTHER_FILE{path.suffix}"])
        runs = False
        check.append(f"there is one field only: name the {group.other_needed[2:]} and its file")
    words += [["--constant", names.word(name)] for name in constant_words(variables, group)]
    if group.guessed:
        words.append(["--axes", group.axes_in_words])
        known = group.targets[0] if group.targets else group.inputs[0]
        sizes = ", ".join(f"{axis} {size}" for axis, size in known.sizes.items())
        check.append(f"the axes are a guess, since the format does not say them: is {known.name} {sizes}?")
    if not steady:
        given, predicted = frames_in_and_out(group.frames)
        words.append(["--frames-in", str(given), "--frames-out", str(predicted)])
        check.append(f"of {group.frames} frames windows of {given} + {predicted} use all; choose what your task needs")
    words.append(["--out", _out(path, number)])
    if group.uneven:
        runs = False
        check.append(
            f"points along {', '.join(group.uneven)} are not evenly spaced, which is refused: interpolate them first, "
            + " or ".join("--time-step STEP" if axis == "t" else f"--spacing {axis}=STEP" for axis in group.uneven)
            + " takes them as if they were"
        )
    check += _not_said(group, steady)
    check += hints(variables, attributes, group)
    if left:
        check.append(f"not in {'a' if number else 'the'} command: {', '.join(left[:8])}{_more(len(left) - 8)}")
    return Suggestion(f"To convert it ({group.kind})", words, check, runs)


def _not_said(group: Group, steady: bool) -> list[str]:
    first = (group.targets or group.inputs)[0]
    space = [axis for axis in "xyz" if axis in (first.axes or ())]
    said = []
    if any(axis not in first.coordinates for axis in space):
        said.append("--spacing")
    if any(axis not in first.boundary for axis in space):
        said.append("--boundary (periodic, wall or open)")
    if not steady and "t" not in first.coordinates:
        said.append("--time-step")
    return [f"the file does not say them, so add what you know: {', '.join(said)}"] if said else []


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def _out(path: Path, number: int) -> str:
    """Not the file itself, and not the benchmark's name for a problem of one's own."""
    stem = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in path.stem).lstrip("-.") or "own"
    stem = f"my_{stem}" if stem in BENCHMARK else stem
    stem = f"{stem}_{number + 1}" if number else stem
    out = Path("data") / f"{stem}.zarr"
    return str(out.with_name(f"{stem}_store.zarr") if out.resolve() == path.resolve() else out)


class _Names:
    """Fields by the words of the command line, no two of them with the same name."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def word(self, key: str) -> str:
        bare = key.removeprefix("@")
        short = bare.rpartition("/")[2]
        if short not in self._taken and "=" not in key:
            self._taken.add(short)
            return key
        name = "".join(letter if letter.isalnum() else "_" for letter in bare)
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return f"{name}={key}"


def _of_the_benchmark(path: Path, variables: Sequence[Described]) -> list[Suggestion]:
    """The FNO authors' files are known by their names and sizes."""
    shapes = {one.name: one.shape for one in variables if not one.error}
    coeff, u, a = shapes.get("coeff", ()), shapes.get("u", ()), shapes.get("a", ())
    if coeff[1:] == (421, 421) and shapes.get("sol") == coeff:
        name, samples = "darcy", coeff[0]
    elif u[1:] == (64, 64, 20):
        name, samples = "navier_stokes", u[0]
    elif len(u) == 2 and a == u and u[1] >= 1024:
        name, samples = "burgers", u[0]
    else:
        return []
    if samples < 2:
        return []
    words = [["geomano", "data", "convert", str(path)], ["--problem", name]]
    train, test = BENCHMARK_SIZES["train"], BENCHMARK_SIZES["test"]
    check = [f"takes {train} samples to train and {test} to test; of two files the second one tests"]
    if samples < train + test:
        test = max(1, samples * test // (train + test))
        words.append(["--train", str(samples - test), "--test", str(test)])
        check = [f"the benchmark has {train} and 200; here are {samples}: give a second file to test if there is one"]
    stride = BENCHMARK[name].stride
    if stride > 1:
        check.append(f"keeps every {stride}. point along a side, as the benchmark does (--stride)")
    return [Suggestion(f"As the benchmark's {name}", [*words, ["--out", f"data/{_stem(path, name)}.zarr"]], check)]


def _stem(path: Path, name: str) -> str:
    return name if _out(path, 0) != f"data/{name}_store.zarr" else f"{name}_store"
