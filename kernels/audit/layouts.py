"""Layouts of Triton's tensors, read from the compiler's GPU IR (TTGIR): registers of a thread, and axes over warps.

A layout says which thread holds which element: `#ttg.blocked` by sizes per thread, warp and program, `#ttg.slice` as a
layout with one more axis that was summed or not yet added, `#ttg.linear` by the element that each bit of the register,
lane and warp number leads to.
"""

import re
from typing import NamedTuple

_TENSOR = re.compile(r"tensor<((?:\d+x)*)([a-z!][\w.!<>]*), (#.*)>$")
_LIST = re.compile(r"\[([\d, ]*)\]")


class Tensor(NamedTuple):
    shape: tuple[int, ...]
    element: str
    layout: str

    @property
    def element_bytes(self) -> int:
        """Of a value, or of what a pointer points at."""
        bits = re.search(r"(\d+)>?$", self.element)
        return max(1, int(bits.group(1)) // 8) if bits else 4


def tensor_type(text: str) -> Tensor:
    """A type as it is printed; a scalar is a tensor without axes."""
    found = _TENSOR.match(text.strip())
    if not found:
        return Tensor((), text.strip().removeprefix("!tt.ptr<").rstrip(">"), "")
    shape = tuple(int(size) for size in found[1].split("x") if size)
    return Tensor(shape, found[2].removeprefix("!tt.ptr<").rstrip(">"), found[3])


def registers(tensor: Tensor, aliases: dict[str, str]) -> int | None:
    """Elements that a thread holds, not counting copies; None for a layout that is not known here."""
    if not tensor.layout:
        return 1
    axes = _axes(tensor.shape, tensor.layout, aliases, "register")
    return None if axes is None else axes


def warps_along(tensor: Tensor, axis: int, aliases: dict[str, str]) -> int | None:
    """Warps over which an axis is spread; None for a layout that is not known here."""
    layout, shape = _outermost(tensor.layout, aliases), tensor.shape
    if layout.startswith("#ttg.slice"):
        dim, parent = _slice(layout)
        longer = (*shape[:dim], 1, *shape[dim:])
        return warps_along(Tensor(longer, tensor.element, parent), axis + (axis >= dim), aliases)
    if layout.startswith("#ttg.blocked"):
        size, lanes, warps = (_numbers(layout, key) for key in ("sizePerThread", "threadsPerWarp", "warpsPerCTA"))
        return min(warps[axis], max(1, shape[axis] // (size[axis] * lanes[axis])))
    if layout.startswith("#ttg.linear"):
        return 1 << sum(base[axis] > 0 for base in _bases(layout, "warp"))
    return None


def _axes(shape: tuple[int, ...], layout: str, aliases: dict[str, str], of: str) -> int | None:
    layout = _outermost(layout, aliases)
    if layout.startswith("#ttg.slice"):
        dim, parent = _slice(layout)
        return _axes((*shape[:dim], 1, *shape[dim:]), parent, aliases, of)
    if layout.startswith("#ttg.blocked"):
        count = 1
        keys = ("sizePerThread", "threadsPerWarp", "warpsPerCTA")
        for side, size, lanes, warps in zip(shape, *(_numbers(layout, key) for key in keys), strict=True):
            count *= min(size, side) * max(1, side // (size * lanes * warps))
        return count
    if layout.startswith("#ttg.linear"):
        return 1 << sum(any(base) for base in _bases(layout, of))
    return None


def _outermost(layout: str, aliases: dict[str, str]) -> str:
    return aliases.get(layout, layout)


def _slice(layout: str) -> tuple[int, str]:
    found = re.match(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>$", layout)
    assert found, layout
    return int(found[1]), found[2]


def _numbers(layout: str, key: str) -> list[int]:
    found = re.search(rf"{key} = {_LIST.pattern}", layout)
    assert found, (key, layout)
    return [int(number) for number in found[1].split(",")]


def _bases(layout: str, key: str) -> list[list[int]]:
    found = re.search(rf"\b{key} = \[((?:\[[\d, ]*\](?:, )?)*)\]", layout)
    assert found, (key, layout)
    return [[int(number) for number in base.split(",")] for base in _LIST.findall(found[1])]


class Along(NamedTuple):
    """A scan or a sum along an axis, and the warps over which that axis is spread."""

    operation: str
    line: str
    warps: int | None


def scans(ttgir: str, operation: str = "tt.scan") -> list[Along]:
    """Every scan (or with "tt.reduce" every sum) in what audit/structure keeps of the TTGIR."""
    aliases = dict(line.split(" = ", 1) for line in ttgir.splitlines() if line.startswith("#"))
    found: list[Along] = []
    waiting: list[int | None] = []
    for line in ttgir.splitlines():
        code, place = (part.strip() for part in line.partition("@@")[::2])
        if code.startswith("}"):
            axis = waiting.pop() if waiting else None
            if axis is not None:
                first = re.search(r": \((tensor<.*?>)(?:, tensor<|\) ->)", code)
                assert first, code
                found.append(Along(operation, place, warps_along(tensor_type(first[1]), axis, aliases)))
            if "else" in code:
                waiting.append(None)
        elif code.endswith("{") and not code.startswith("tt.func"):
            opened = re.search(r"axis = (\d+)", code)
            waiting.append(int(opened[1]) if opened and f'"{operation}"' in code else None)
    return found
