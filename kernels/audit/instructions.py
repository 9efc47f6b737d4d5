"""Warp instructions that a launch executes, counted from its machine code: blocks of instructions x how often they run.

How often a loop runs cannot be read from machine code, and is not declared by hand either: `structure` works it out
from the compiler's IR. What is left is to find each loop of the machine code among those of the IR, and to notice what
ptxas made of it:

    match     a loop of the machine code is the one of the IR, inside the match of the loop around it, whose line its
              closing jump has and whose lines its instructions have
    unrolled  a thread's exponentials (MUFU.EX2) and bytes loaded and stored in a round are known from the layouts of
              the IR. The machine code has them once, or u times where a loop was unrolled u times: then it runs 1 / u
              of the rounds, and of several loops that are one in the IR the longer ones go first, then the rounds that
              are left over, which may be blocks outside of the loop
    branches  a block whose lines are of one side of an `if` runs as often as that side; every other jump that skips
              something is counted as if it skipped nothing, and so is a predicated instruction, which takes its slot

So a count is an upper bound that is met where nothing is skipped. A loop without a match, a number of exponentials or
bytes that is no multiple, or a sum of exponentials over the whole launch that differs from the IR's, is a
CountingError: a wrong count does not pass silently.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from geomano_hpc.kernels.audit.sass import Block, Loop, loops_of, reachable
from geomano_hpc.kernels.audit.structure import CountingError, Region, Structure

EXPONENTIALS_OFF = (0.98, 1.06)  # executed over expected: more where a round was peeled off


@dataclass(frozen=True)
class Counted:
    """Warp instructions of a launch."""

    classes: dict[str, float]
    busiest: float  # of the program that executes most
    programs: int
    exponentials: float  # warp instructions MUFU.EX2
    unchecked: tuple[str, ...] = ()  # loops without anything to recognise unrolling by

    @property
    def total(self) -> float:
        return sum(self.classes.values())


def count(
    structure: Structure, blocks: Sequence[Block], grid: Sequence[int], integers: dict[int, int], warps: int
) -> Counted:
    """`integers` are the launch's, by the position among the arguments that are no constants."""
    times = structure.times(grid, integers)
    return _Matching(structure, list(blocks), times, warps).counted()


class _Matching:
    def __init__(self, structure: Structure, blocks: list[Block], times: dict[Region, np.ndarray], warps: int) -> None:
        self.structure, self.blocks, self.warps = structure, blocks, warps
        self.times = {region: times.get(region, np.zeros(len(times[structure.kernel]))) for region in _all(structure)}
        self.loops = loops_of(blocks)
        inner: list[set[int]] = [set() for _ in self.loops]
        for loop in self.loops:
            if loop.parent is not None:
                inner[loop.parent] |= loop.blocks
        self.own = [loop.blocks - inside for loop, inside in zip(self.loops, inner, strict=True)]
        self.unchecked: list[str] = []
        self.strays: dict[int, tuple[Region, int]] = {}  # blocks that are rounds of a loop, and how many
        self.match = self._matched()

    def counted(self) -> Counted:
        nothing: set[int] = set()
        outside = reachable(self.blocks) - nothing.union(*(loop.blocks for loop in self.loops))
        areas = [(outside, self.structure.kernel), *zip(self.own, self.match, strict=True)]
        for area, region in areas:
            self._find_strays(area, region)
        rounds, strays = self._rounds()
        runs_of = [np.ones_like(self.times[self.structure.kernel]), *rounds]
        classes: dict[str, float] = defaultdict(float)
        of_program = np.zeros(len(self.times[self.structure.kernel]))
        exponentials = 0.0
        for (area, region), runs in zip(areas, runs_of, strict=True):
            for n in area:
                block = self.blocks[n]
                here = strays[n] if n in strays else runs * self._share(block, region)
                total = float(here.sum()) * self.warps
                for name, number in block.classes.items():
                    classes[name] += number * total
                of_program += block.count * here * self.warps
                exponentials += block.exponentials * total
        self._check_sum(exponentials)
        return Counted(
            dict(classes), float(of_program.max()), len(of_program), exponentials, tuple(sorted(set(self.unchecked)))
        )

    def _matched(self) -> list[Region]:
        """The loop of the IR for each of the machine code, from the outermost to the innermost."""
        found: dict[int, Region] = {}
        waiting = list(range(len(self.loops)))
        while waiting:
            ready = [n for n in waiting if self.loops[n].parent is None or self.loops[n].parent in found]
            groups: dict[tuple[Region, ...], list[int]] = {}
            for n in ready:
                groups.setdefault(self._candidates(n, found), []).append(n)
            for regions, loops in groups.items():
                loops.sort(key=lambda n: self.loops[n].head)
                # Of loops that look alike, those with a constant number of rounds may have been unrolled altogether.
                varying = [region for region in regions if not self._constant(region)]
                for likely in (regions, varying):
                    if len(likely) in (1, len(loops)):
                        found |= dict(zip(loops, list(likely) * (len(loops) // len(likely)), strict=True))
                        break
                else:
                    raise CountingError(f"loops of {regions[0].line} cannot be told apart in the machine code")
            waiting = [n for n in waiting if n not in found]
        return [found[n] for n in range(len(self.loops))]

    def _candidates(self, n: int, found: dict[int, Region]) -> tuple[Region, ...]:
        """The loops of the IR that one of the machine code is most like."""
        parent = self.loops[n].parent
        around = self.structure.kernel if parent is None else found[parent]
        loops = [region for region in around.within() if region.kind == "for" and region is not around]
        scores = {region: self._likeness(n, self.loops[n], region) for region in loops}
        best = max(scores.values(), default=0.0)
        if best < 0.5:
            lines = Counter(line for b in self.own[n] for line in self.blocks[b].lines).most_common(3)
            raise CountingError(f"a loop of the machine code, lines {lines}, is none of the kernel's loops")
        return tuple(region for region, score in scores.items() if score > best - 1e-9)

    def _constant(self, region: Region) -> bool:
        assert region.parent is not None
        opener = next(op for op in region.parent.operations if region in op.inside)
        return all(self.structure.is_constant(name) for name in opener.operands[1:4])

    def _find_strays(self, area: set[int], region: Region) -> None:
        """Blocks outside of a loop that are rounds of it all the same: what unrolling leaves over."""
        inner = [r for r in dict.fromkeys(self.match) if r is not region and r in set(region.within())]
        inner = [r for r in inner if r.parent is not None and self._match_of(r.parent) is region]
        for loop in inner:
            inside = set(loop.within())
            outer = [op for other in region.within() if other not in inside for op in other.operations]
            elsewhere = {op.line for op in outer if op.name in ("tt.load", "tt.store", "math.exp2", "math.exp")}
            alone, static = (loop.lines | {loop.line}) - elsewhere, self._static(loop, largest=True)
            if not static.any():
                continue
            kind = int(static[0] == 0)
            for n in area:
                block = self.blocks[n]
                lines = {line: number for line, number in block.lines.items() if line}
                of_loop = sum(number for line, number in lines.items() if line in alone)
                share = (block.exponentials, block.bytes_moved)[kind] / static[kind]
                if of_loop > 0.6 * sum(lines.values()) and round(share) >= 1 and abs(share - round(share)) < 0.05:
                    self.strays[n] = (loop, round(share))

    def _likeness(self, n: int, loop: Loop, region: Region) -> float:
        closing = any(self.blocks[tail].last_line == region.line for tail in loop.tails)
        own = {op.line for inside in self._same_loop(region) for op in inside.operations} | {region.line}
        lines: Counter[str] = Counter()
        for block in self.own[n]:
            lines.update(self.blocks[block].lines)
        return closing + sum(number for line, number in lines.items() if line in own) / lines.total()

    def _same_loop(self, region: Region) -> list[Region]:
        """A region and the branches in it, without further loops."""
        return [inside for inside in region.within() if inside.loop is region.loop or inside is region]

    def _static(self, region: Region, largest: bool) -> np.ndarray:
        """[exponentials, bytes] that one round of a region has in its code, with loops that left the machine code. Of
        the sides of a branch all, or the largest, since equal ends of both sides may be joined."""
        found = np.array([self.structure.exponentials(region), self.structure.bytes_moved(region)], float)
        for operation in region.operations:
            sides = []
            for inside in operation.inside:
                if inside.kind == "for":
                    if inside not in self.match:
                        found += self._trips(inside) * self._static(inside, largest)
                elif inside.kind in ("then", "else"):
                    sides.append(self._static(inside, largest))
            if sides:
                found += np.sum(sides, 0) if largest else np.max(sides, 0)
        return found

    def _trips(self, region: Region) -> float:
        """Of a loop that was unrolled altogether."""
        assert region.parent is not None
        entered = self.times[region.parent]
        trips = self.times[region][entered > 0] / entered[entered > 0]
        if trips.size and trips.min() != trips.max():
            raise CountingError(f"the loop of {region.line} runs a varying number of rounds, but left the machine code")
        return float(trips[0]) if trips.size else 0.0

    def _rounds(self) -> tuple[list[np.ndarray], dict[int, np.ndarray]]:
        """How often each loop of the machine code runs, in every program, and each block that is a stray of one."""
        found: list[np.ndarray] = [np.empty(0)] * len(self.loops)
        strays: dict[int, np.ndarray] = {}
        for region in dict.fromkeys(self.match):
            parts = [(self._unrolled(n, region), True, n) for n in range(len(self.loops)) if self.match[n] is region]
            parts += [(unrolled, False, n) for n, (loop, unrolled) in self.strays.items() if loop is region]
            assert region.parent is not None
            entered = np.maximum(self.times[region.parent], 1)
            left = self.times[region] / entered
            for unrolled, is_loop, n in sorted(parts, reverse=True):
                runs = left / unrolled if len(parts) == 1 else left // unrolled
                if not is_loop:
                    runs = np.minimum(runs, 1)
                left = left - runs * unrolled
                if is_loop:
                    found[n] = runs * entered
                else:
                    strays[n] = runs * entered
        return found, strays

    def _unrolled(self, n: int, region: Region) -> int:
        """How many rounds of the kernel's loop are one of the machine code's."""
        least, most = self._static(region, largest=False), self._static(region, largest=True)
        blocks = [self.blocks[b] for b in self.own[n] if b not in self.strays]
        have = np.array([sum(b.exponentials for b in blocks), sum(b.bytes_moved for b in blocks)], float)
        have[0] *= not self.structure.hides_exponentials
        if not most.any():
            if not any(loop in region.within() for loop in self.match if loop is not region):
                self.unchecked.append(region.line)
            return 1
        kind = int(most[0] == 0)  # exponentials where there are any
        times = max(1, round(float(have[kind] / most[kind])))
        # Rounds that unrolling leaves over of a loop inside, where they could not be told apart.
        inner = [r for r in dict.fromkeys(self.match) if r.parent is not None and r is not region]
        inner = [r for r in inner if r.parent is not None and self._match_of(r.parent) is region]
        surplus = sum((7 * self._static(r, largest=True) for r in inner), np.zeros(2))
        # Less where a thread takes a part of what it could load at once.
        if (have < np.array([0.98, 0.75]) * times * least).any() or (have > 1.05 * times * most + surplus).any():
            raise CountingError(
                f"the loop of {region.line} has {have} exponentials and bytes in machine code, {most} in the kernel"
            )
        return times

    def _share(self, block: Block, region: Region) -> np.ndarray | float:
        """Of a loop's rounds, those in which a block runs: less than all where it belongs to one side of an `if`."""
        known = {line: number for line, number in block.lines.items() if line}
        best: Region | None = None
        for side in region.within():
            if side.kind not in ("then", "else") or self._match_of(side) is not region:
                continue
            elsewhere = {
                op.line for other in region.within() if other not in set(side.within()) for op in other.operations
            }
            alone = side.lines - elsewhere
            if sum(number for line, number in known.items() if line in alone) > 0.6 * sum(known.values()):
                best = side  # inner ones come later
        share: np.ndarray | float = 1.0
        while best is not None and best is not region:
            assert best.parent is not None
            if best.kind in ("then", "else"):
                around = self.times[best.parent]
                share = share * np.divide(self.times[best], around, out=np.zeros_like(around), where=around > 0)
            best = best.parent
        return share

    def _match_of(self, region: Region) -> Region:
        """The loop around that is left in the machine code, or the kernel."""
        found = region.loop
        while found.kind == "for" and found not in self.match:
            assert found.parent is not None
            found = found.parent.loop
        return found

    def _check_sum(self, exponentials: float) -> None:
        if self.structure.hides_exponentials:
            return
        expected = sum(
            self.structure.exponentials(region) * float(times.sum()) * self.warps
            for region, times in self.times.items()
        )
        least, most = EXPONENTIALS_OFF
        if not least * expected <= exponentials <= most * expected:
            raise CountingError(
                f"the machine code executes {exponentials:.4g} exponentials a warp, the kernel has {expected:.4g}"
            )


def _all(structure: Structure) -> list[Region]:
    return list(structure.kernel.within())
