"""Numbers of a sample that a raw file holds: those that are constants for certain, and those that may be."""

import math
import re
from collections.abc import Sequence
from typing import Any

from geomano_hpc.data_prep.inspection.described import Described
from geomano_hpc.data_prep.inspection.field_groups import Group
from geomano_hpc.data_prep.readers.dimensions import axes_of_dimensions

_NO_PHYSICS = re.compile(r"version|^n_|^num|count|seed|index|(^|_)id$|date|size|shape|dim|chunk|fill|valid_", re.I)
_MOST_HINTS = 6


def constant_words(variables: Sequence[Described], group: Group) -> list[str]:
    """Variables with one number for each sample, where the format says that."""
    if group.samples < 2:
        return []
    return [one.name for one in variables if _is_constant(one) and one.axes == ("sample",) and _fits(one, group)]


def hints(variables: Sequence[Described], attributes: dict[str, Any], group: Group) -> list[str]:
    """What may be worth giving to the model as well."""
    used = {one.name for one in (*group.inputs, *group.targets)} | set(constant_words(variables, group))
    found = [one.name for one in variables if _is_constant(one) and one.name not in used and _may_fit(one, group)]
    short = {name.rpartition("/")[2] for name in (*found, *used)}
    found += [f"@{name}={_number(value)}" for name, value in attributes.items() if _is_physics(name, value, short)]
    if not found:
        return []
    words = [f"--constant {name.partition('=')[0]}" + _value(name) for name in found[:_MOST_HINTS]]
    more = f" and {len(found) - _MOST_HINTS} more" if len(found) > _MOST_HINTS else ""
    return [f"numbers that the model may be given, too: {', '.join(words)}{more}"]


def _value(name: str) -> str:
    _, separator, value = name.partition("=")
    return f" ({value})" if separator else ""


def _number(value: float) -> str:
    return f"{value:.6g}"


def _is_constant(one: Described) -> bool:
    """By its type and name: a number, and neither the points of an axis nor a running number."""
    short = one.name.rpartition("/")[2]
    numbers = not one.error and one.dtype[:3] in ("flo", "int", "uin") and "=" not in one.name
    return numbers and axes_of_dimensions([short]) is None and not _NO_PHYSICS.search(short)


def _fits(one: Described, group: Group) -> bool:
    return math.prod(one.shape) == group.samples


def _may_fit(one: Described, group: Group) -> bool:
    said = one.axes in (None, (), ("sample",))
    return said and math.prod(one.shape) in (1, group.samples) and sum(size > 1 for size in one.shape) <= 1


def _is_physics(name: str, value: Any, taken: set[str]) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return is_number and "=" not in name and name not in taken and not _NO_PHYSICS.search(name)
