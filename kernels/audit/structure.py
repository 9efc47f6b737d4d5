"""How often every part of a kernel runs, worked out from the compiler's GPU IR (TTGIR) and a launch's integers.

Loops and branches of a kernel depend on its integer arguments and its program number only. Their bounds are a few
scalar operations in the IR, which are evaluated here for all programs of a launch at once: nobody declares a trip count
by hand, and none is guessed. What cannot be known so (a bound that was loaded from memory, a `while`) is an error; of a
branch that cannot be known both sides are counted. One convention is taken from the kernels: a float that is loaded
and turned into an integer is a zero of a scratch, added so that the compiler computes an address again and does not
keep it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from geomano_hpc.kernels.audit.layouts import Tensor, registers, tensor_type

_OP = re.compile(r'^(?:(%[\w.$-]+)(?::\d+)? = )?"?([a-z_]+\.[\w.]+)"?(.*)$')
_NAME = re.compile(r"%[\w.$-]+(?:#\d+)?")
_SCALAR = re.compile(r": (?:i\d+|index|f32)(?: to (?:i\d+|index))?$")
_KEPT = ("scf.", "tt.load", "tt.store", "tt.get_program_id", "tt.get_num_programs", "math.", "tt.scan", "tt.return",
         "tt.extern_elementwise")  # fmt: skip
_EXPONENTIALS = ("math.exp", "math.exp2")
_HIDDEN = ("math.erf", "math.tanh", "math.sinh", "math.cosh", "math.powf", "tt.extern_elementwise")  # inside of these

Lines = frozenset[str]


class CountingError(Exception):
    """The counted and the compiled kernel do not fit together, so that a count would be wrong."""


class _DependsError(Exception):
    """A bound depends on the round of a loop around it."""


@dataclass
class Operation:
    name: str
    rest: str  # what is printed after the name
    result: str
    line: str  # file:line, innermost
    region: "Region"
    operands: list[str] = field(default_factory=list)  # names as `Structure` knows them
    inside: list["Region"] = field(default_factory=list)

    @property
    def tensor(self) -> Tensor:
        """Of a load, its result or its pointer; of another operation, its last type."""
        return tensor_type(self.rest.rpartition(" : ")[2].split(" -> ")[0])


@dataclass(eq=False)
class Region:
    """The whole kernel, the body of a loop, or one side of a branch."""

    kind: str  # "kernel", "for", "then", "else", or "other": the combine function of a scan
    line: str
    parent: "Region | None"
    head: str = ""
    operations: list[Operation] = field(default_factory=list)
    children: list["Region"] = field(default_factory=list)

    def within(self) -> Iterator["Region"]:
        yield self
        for child in self.children:
            yield from child.within()

    @property
    def loop(self) -> "Region":
        """The nearest loop around, or the kernel."""
        found = self
        while found.kind not in ("for", "kernel"):
            assert found.parent is not None
            found = found.parent
        return found

    @property
    def lines(self) -> Lines:
        return frozenset(operation.line for region in self.within() for operation in region.operations)


class Structure:
    """Regions of a kernel. `text` is what `prune` keeps of the TTGIR."""

    def __init__(self, text: str) -> None:
        self.aliases: dict[str, str] = {}
        self.arguments: list[str] = []
        self.kernel = Region("kernel", "", None)
        self._made: dict[str, Operation] = {}
        self._count = 0
        self._names: list[dict[str, str]] = [{}]  # by scope: a name may come back in another loop
        self._bound: dict[str, Region] = {}  # induction variables and carried values
        self._parse(text)

    def loops(self) -> list[Region]:
        return [region for region in self.kernel.within() if region.kind == "for"]

    def is_constant(self, name: str) -> bool:
        return name in self._made and self._made[name].name == "arith.constant"

    def exponentials(self, region: Region) -> int:
        """Of a thread, in one round of a region without those inside; 0 if some are hidden in other functions."""
        if self.hides_exponentials:
            return 0
        return sum(self._registers(op) for op in region.operations if op.name in _EXPONENTIALS)

    @property
    def hides_exponentials(self) -> bool:
        return any(op.name in _HIDDEN for region in self.kernel.within() for op in region.operations)

    def bytes_moved(self, region: Region) -> int:
        """To and from memory by a thread, in one round of a region without those inside."""
        moved = (op for op in region.operations if op.name in ("tt.load", "tt.store"))
        return sum(self._registers(op) * op.tensor.element_bytes for op in moved)

    def _registers(self, operation: Operation) -> int:
        found = registers(operation.tensor, self.aliases)
        if found is None:
            raise CountingError(f"unknown layout in {operation.name}{operation.rest} of {operation.line}")
        return found

    def times(self, grid: Sequence[int], integers: dict[int, int]) -> dict[Region, np.ndarray]:
        """How often each region runs, for every program of a grid; `integers` by the position of the argument."""
        sizes = (*grid, 1, 1)[:3]
        number = np.arange(int(np.prod(sizes)))
        axes = {"x": number % sizes[0], "y": number // sizes[0] % sizes[1], "z": number // (sizes[0] * sizes[1])}
        known: dict[str, Any] = {self.arguments[position]: value for position, value in integers.items()}
        known |= {f"program {axis}": values for axis, values in axes.items()}
        known |= {f"programs {axis}": size for axis, size in zip("xyz", sizes, strict=True)}
        found: dict[Region, np.ndarray] = {}
        self._walk(self.kernel, np.ones(len(number)), known, found)
        return found

    def _walk(self, region: Region, times: np.ndarray, known: dict[str, Any], found: dict[Region, np.ndarray]) -> None:
        found[region] = found.get(region, 0) + times
        for operation in region.operations:
            if operation.name == "scf.for":
                self._walk_loop(operation, times, known, found)
            elif operation.name == "scf.if":
                try:
                    condition = np.asarray(self._value(operation.operands[0], known)) != 0
                    sides = [times * condition, times * ~condition]
                except CountingError:
                    sides = [times, times]
                for side, weight in zip(operation.inside, sides, strict=False):
                    self._walk(side, weight, known, found)
            elif operation.name == "scf.while":
                raise CountingError(f"a while loop in {operation.line} cannot be counted; use a for loop")

    def _walk_loop(
        self, operation: Operation, times: np.ndarray, known: dict[str, Any], found: dict[Region, np.ndarray]
    ) -> None:
        (body,) = operation.inside
        variable, first, last, step = operation.operands[:4]
        start, end, stride = (np.asarray(self._value(name, known)) for name in (first, last, step))
        rounds = np.maximum(0, -((start - end) // stride))
        fresh = {name: value for name, value in known.items() if not name.startswith("memo ")}
        inner: dict[Region, np.ndarray] = {}
        try:
            self._walk(body, times * rounds, fresh, inner)
        except _DependsError as reason:
            if self._bound[str(reason)] is not body:
                raise
            inner = {}
            carried = _pairs(operation)
            values: dict[str, Any] = {}
            for name, initial, _ in carried:
                values |= self._perhaps(name, initial, known)
            for number in range(int(rounds.max(initial=0))):
                here = fresh | values | {variable: start + number * stride}
                self._walk(body, times * (number < rounds), here, inner)
                here = {name: value for name, value in here.items() if not name.startswith("memo ")}
                values = {}
                for name, _, following in carried:
                    values |= self._perhaps(name, following, here)
        for region, count in inner.items():
            found[region] = found.get(region, 0) + count

    def _perhaps(self, name: str, source: str, known: dict[str, Any]) -> dict[str, Any]:
        """A carried value; if it cannot be known, the reason, which counts only where the value is used."""
        try:
            return {name: self._value(source, known)}
        except (CountingError, _DependsError) as reason:
            return {name: reason}

    def _value(self, name: str, known: dict[str, Any]) -> Any:
        if name in known:
            if isinstance(known[name], Exception):
                raise known[name]
            return known[name]
        memo = f"memo {name}"
        if memo not in known:
            if name in self._bound:
                raise _DependsError(name)
            plain, _, number = name.partition("#")
            if plain not in self._made:
                raise CountingError(f"{name} is not known from the arguments of the launch")
            known[memo] = self._computed(self._made[plain], int(number or 0), known)
        return known[memo]

    def _computed(self, operation: Operation, number: int, known: dict[str, Any]) -> Any:
        kind, rest = operation.name.partition(".")[2], operation.rest
        if operation.name == "arith.constant":
            text = rest.split(":")[0].strip()
            return {"true": 1, "false": 0}.get(text) if text in ("true", "false") else int(text)
        if operation.name in ("tt.get_program_id", "tt.get_num_programs"):
            return known[f"program{'s' if 'num' in kind else ''} {rest.split()[0]}"]
        if operation.name == "scf.if":
            condition = np.asarray(self._value(operation.operands[0], known)) != 0
            sides = [self._value(side.operations[-1].operands[number], known) for side in operation.inside]
            return np.where(condition, *sides)
        if kind == "fptosi" and self._made[operation.operands[0]].name == "tt.load":
            return 0  # a zero that is hidden from the compiler
        operands = [np.asarray(self._value(operand, known)) for operand in operation.operands]
        if kind == "cmpi":
            return _COMPARISONS[rest.split(",")[0].strip().lstrip("su")](*operands).astype(np.int64)
        if operation.name.startswith("arith.") and kind in _ARITHMETIC:
            return _ARITHMETIC[kind](*operands)
        raise CountingError(f"{operation.name} of {operation.line} is not known from the arguments of the launch")

    def _parse(self, text: str) -> None:
        stack = [self.kernel]
        for line in text.splitlines():
            code, place = (part.strip() for part in line.partition("@@")[::2])
            if code.startswith("#"):
                alias, _, layout = code.partition(" = ")
                self.aliases[alias] = layout
            elif code.startswith("tt.func"):
                self.arguments = [self._define(name) for name in re.findall(r"(%[\w.$-]+): ", code)]
            elif code.startswith("}"):
                if len(stack) == 1:  # the end of the kernel
                    break
                closed = stack.pop()
                self._names.pop()
                opener = stack[-1].operations[-1]
                if "else" in code:
                    stack.append(self._opened(opener, "else", place))
                elif closed.kind in ("then", "else", "for"):
                    opener.line = place
                    for region in opener.inside:
                        region.line = place
            elif found := _OP.match(code):
                name, rest = found[2], found[3].removesuffix("{").removesuffix("(").strip()
                operation = Operation(name, rest, found[1] or "", place, stack[-1])
                operation.operands = [self._visible(operand) for operand in _NAME.findall(rest)]
                stack[-1].operations.append(operation)
                if code.endswith("{"):
                    kind = {"scf.for": "for", "scf.if": "then"}.get(name, "other")
                    region = self._opened(operation, kind, place)
                    stack.append(region)
                    if kind == "for":
                        made = [0, *range(4, len(operation.operands), 2)]  # the round, and what is carried
                        for n in made:
                            operation.operands[n] = self._define(_NAME.findall(rest)[n])
                            self._bound[operation.operands[n]] = region
                if found[1]:
                    self._made[self._define(found[1], len(stack) - (code.endswith("{")))] = operation

    def _define(self, name: str, depth: int | None = None) -> str:
        """A name of its own for what is made here."""
        scope = self._names[-1 if depth is None else depth - 1]
        self._count += 1
        scope[name] = f"{name}~{self._count}"
        return scope[name]

    def _visible(self, name: str) -> str:
        plain, mark, number = name.partition("#")
        found = next((scope[plain] for scope in reversed(self._names) if plain in scope), plain)
        return f"{found}{mark}{number}"

    def _opened(self, operation: Operation, kind: str, place: str) -> Region:
        region = Region(kind, place, operation.region)
        self._names.append({})
        operation.region.children.append(region)
        operation.inside.append(region)
        return region


def _pairs(operation: Operation) -> list[tuple[str, str, str]]:
    """What a loop carries: its name, what it starts from, and what the next round gets."""
    carried = operation.operands[4:]
    body = operation.inside[0].operations
    following = body[-1].operands if body and body[-1].name == "scf.yield" else []
    return list(zip(carried[::2], carried[1::2], following, strict=False))


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Towards zero, as the machine divides."""
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


_COMPARISONS: dict[str, Any] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_ARITHMETIC: dict[str, Any] = {
    "addi": np.add, "subi": np.subtract, "muli": np.multiply, "divsi": _quotient, "divui": np.floor_divide,
    "remsi": np.fmod, "remui": np.fmod, "ceildivsi": lambda a, b: -(-a // b), "floordivsi": np.floor_divide,
    "minsi": np.minimum, "maxsi": np.maximum, "minui": np.minimum, "maxui": np.maximum,
    "andi": np.bitwise_and, "ori": np.bitwise_or, "xori": np.bitwise_xor,
    "shli": np.left_shift, "shrsi": np.right_shift, "shrui": np.right_shift,
    "extsi": np.asarray, "extui": np.abs, "trunci": np.asarray, "index_cast": np.asarray,
    "select": lambda condition, a, b: np.where(condition, a, b),
}  # fmt: skip


def prune(ttgir: str) -> str:
    """What is needed of the TTGIR: scalars, loops, branches, memory, exponentials and scans, each with its line."""
    places: dict[str, str] = {}
    for line in ttgir.splitlines():
        if found := re.match(r"(#loc\d*) = loc\((.*)\)$", line):
            places[found[1]] = found[2]
    kept = [line for line in ttgir.splitlines() if re.match(r"#(?!loc)\w+ = #ttg", line)]
    for line in ttgir.splitlines():
        code, _, place = line.strip().rpartition(" loc(")
        code = code or line.strip()
        if code.startswith("tt.func"):
            kept.append(re.sub(r" loc\(\"?[^)]*\)+", "", line.strip()))
            continue
        found = _OP.match(code)
        scalar = found and found[2].startswith("arith.") and _SCALAR.search(code)
        opening = code.endswith("{") and not code.startswith("module")
        if opening or scalar or code.startswith("}") or (found and found[2].startswith(_KEPT)):
            name = place.removesuffix(")")
            kept.append(f"{code} @@ {_innermost(name, places)}")
        elif found:  # the line alone says what belongs to which loop
            kept.append(f"other.op @@ {_innermost(place.removesuffix(')'), places)}")
    return "\n".join(line for n, line in enumerate(kept) if n == 0 or line != kept[n - 1])


def _innermost(place: str, places: dict[str, str]) -> str:
    """file:line of a location; of what was inlined, where it was written."""
    for _ in range(20):
        if found := re.match(r'"([^"]*)":(\d+):\d+', place):
            return f"{found[1].rpartition('/')[2]}:{found[2]}"
        if found := re.match(r"callsite\((#loc\d*) at", place) or re.search(r"(#loc\d*)", place):
            place = places.get(found[1], "")
        else:
            break
    return ""
