"""What is in a raw file: names, shapes, types, axes, attributes, and the commands that would convert it.

Only the descriptions of variables and the points of axes are read, however large the file is.
"""

import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from geomano_hpc.data_prep.inspection.described import Described, described_variables
from geomano_hpc.data_prep.inspection.suggestions import Suggestion, suggestions
from geomano_hpc.data_prep.readers import file_attributes, format_name
from geomano_hpc.data_prep.readers.variable import Coordinates

_WIDTH = 100
_MOST_FILES = 50_000  # of a store, whose sizes are added up
_MOST_VARIABLES, _MOST_ATTRIBUTES, _MOST_LETTERS = 40, 20, 100  # in the text; JSON has all

# Of variables: what is said already, and what is of no use but to the libraries that wrote it.
_KNOWN = ("units", "MATLAB_class", "H5PATH", "dim_varying", "sample_varying", "time_varying")


@dataclass(frozen=True)
class Inspected:
    path: Path
    format: str
    size: int  # in bytes; of a store with very many files, of the first ones
    variables: list[Described]
    attributes: dict[str, Any]
    suggestions: list[Suggestion]

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "format": self.format,
            "size": self.size,
            "variables": [asdict(one) for one in self.variables],
            "attributes": self.attributes,
            "suggestions": [one.to_json() for one in self.suggestions],
        }

    def lines(self) -> list[str]:
        readable = [one for one in self.variables if not one.error]
        count = f"{len(self.variables)} variable{'s' * (len(self.variables) != 1)}"
        found = [f"{self.path}: {self.format}, {in_words(self.size)}, {count}", ""]
        for one in readable[:_MOST_VARIABLES]:
            found += _variable_lines(one)
        if len(readable) > _MOST_VARIABLES:
            found += [f"... and {len(readable) - _MOST_VARIABLES} more variables; --json lists them all"]
        unreadable = [one for one in self.variables if one.error]
        if unreadable:
            found += ["", "Cannot be read:", *(_wrapped(f"{o.name}: {o.error}") for o in unreadable[:_MOST_VARIABLES])]
        if len(unreadable) > _MOST_VARIABLES:
            found += [f"  ... and {len(unreadable) - _MOST_VARIABLES} more"]
        if self.attributes:
            found += ["", "Attributes of the file:", *_attribute_lines(self.attributes)]
        for one_of_them in self.suggestions:
            found += ["", *one_of_them.lines(_WIDTH)]
        return [line for text in found for line in text.split("\n")]


def inspect(path: Path) -> Inspected:
    """Of a file in any of the formats, or of a Zarr store."""
    kind = format_name(path)
    variables = described_variables(path)
    attributes = file_attributes(path)
    size = sum(file.stat().st_size for file in islice(_files(path), _MOST_FILES))
    return Inspected(path, kind, size, variables, attributes, suggestions(path, variables, attributes))


def _files(path: Path) -> Iterator[Path]:
    return iter([path]) if path.is_file() else (file for file in path.rglob("*") if file.is_file())


def _variable_lines(one: Described) -> Iterator[str]:
    shape = " x ".join(map(str, one.shape)) or "one number"
    units = f", in {one.units}" if one.units else ""
    if one.axes is None:
        axes = ""
    elif one.guessed:
        axes = f", axes perhaps {' '.join(one.axes)} (a guess)"
    else:
        axes = f", axes {' '.join(one.axes)}" if one.axes else ""
    empty = ", empty" if 0 in one.shape else ""
    yield _wrapped(f"{one.name}: {shape}, {one.dtype}{axes}{units}{empty}", "")
    for axis in one.axes or ():
        parts = [_points_in_words(one.coordinates[axis])] if axis in one.coordinates else []
        parts += [one.boundary[axis]] if axis in one.boundary else []
        if parts:
            yield _wrapped(f"{axis}: {one.sizes[axis]} {'frames' if axis == 't' else 'points'}, {', '.join(parts)}")
    if one.components:
        yield _wrapped(f"c: {', '.join(one.components)}")
    yield from _attribute_lines({name: value for name, value in one.attributes.items() if name not in _KNOWN})


def _points_in_words(points: Coordinates) -> str:
    units = f" {points.units}" if points.units else ""
    if points.even:
        return f"from {points.start:.6g}, spacing {points.spacing:.6g}{units}"
    return f"from {points.start:.6g}, NOT evenly spaced ({points.spacing:.6g} on average){units}"


def _attribute_lines(attributes: dict[str, Any]) -> Iterator[str]:
    for name, value in list(attributes.items())[:_MOST_ATTRIBUTES]:
        text = " ".join(str(value).split())
        yield _wrapped(f"{name} = {text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 4] + ' ...'}")
    if len(attributes) > _MOST_ATTRIBUTES:
        yield f"  ... and {len(attributes) - _MOST_ATTRIBUTES} more attributes"


def _wrapped(text: str, indent: str = "  ") -> str:
    return (
        textwrap.fill(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)
        or indent
    )


def in_words(size: int) -> str:
    """Of bytes."""
    amount, units = float(size), ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.0f} {units[0]}" if units[0] == "bytes" else f"{amount:.3g} {units[0]}"
