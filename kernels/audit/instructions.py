"""Warp instructions that a launch executes, counted from its machine code: blocks of instructions x how often they run.

How often a loop runs cannot be read from machine code, and is not declared by hand either: `structure` works it out from
the compiler's IR. What is left is to find each loop of the machine code among those of the IR, and to notice what ptxas
made of it:

    match     a loop of the machine code is the one of the IR, inside the match of the loop around it, whose line its
              closing jump has and whose lines its instructions have
    unrolled  a thread's exponentials (MUFU.EX2) and bytes loaded and stored in a round are known from the layouts of the
              IR. The machine code has them once, or u times where a loop was unrolled u times: then it runs 1 / u of
              the rounds, and of several loops that are one in the IR (with a remainder) the longer ones go first
    branches  a block whose lines are of one side of an `if` runs as often as that side; every other jump that skips
              something is counted as if it skipped nothing, and so is a predicated instruction, which takes its slot

So a count is an upper bound that is met where nothing is skipped. A loop without a match, a number of exponentials or
bytes that is no multiple, or a sum of exponentials over the whole launch that differs from the IR's, is a CountingError:
a wrong count does not pass silently.
"""

from collections import Counter
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
    def __init__(
        self, structure: Structure, blocks: list[Block], times: dict[Region, np.ndarray], warps: int
    ) -> None:
        self.structure, self.blocks, self.warps = structure, blocks, warps
        self.times = {region: times.get(region, np.zeros(len(times[structure.kernel]))) for region in _all(structure)}
        self.loops = loops_of(blocks)
        inner: list[set[int]] = [set() for _ in self.loops]
        for loop in self.loops:
            if loop.parent is not None:
                inner[loop.parent] |= loop.blocks
        self.own = [loop.blocks - inside for loop, inside in zip(self.loops, inner, strict=True)]
        self.match = self._matched()
        self.unchecked: list[str] = []

    def counted(self) -> Counted:
        everything = reachable(self.blocks)
        outside = everything - set().union(*(loop.blocks for loop in self.loops), set())
        parts = [(outside, self.structure.kernel, np.ones_like(self.times[self.structure.kernel]))]
        rounds = self._rounds()
        parts += [(self.own[n], self.match[n], rounds[n]) for n in range(len(self.loops))]
        classes: Counter[str] = Counter()
        of_program = np.zeros(len(self.times[self.structure.kernel]))
        exponentials = 0.0
        for own, region, runs in parts:
            for n in own:
                block = self.blocks[n]
                here = runs * self._share(block, region)
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
        """The loop of the IR for each of the machine code."""
        found: list[Region] = []
        tied: dict[tuple[int, ...], list[int]] = {}
        for n, loop in enumerate(self.loops):
            around = self.structure.kernel if loop.parent is None else found[loop.parent]
            scores = {
                region: self._likeness(n, loop, region)
                for region in around.within()
                if region.kind == "for" and region is not around
            }
            best = max(scores.values(), default=0.0)
            if best < 0.5:
                lines = Counter(line for b in self.own[n] for line in self.blocks[b].lines).most_common(3)
                raise CountingError(f"a loop of the machine code, lines {lines}, is none of the kernel's loops")
            same = [region for region, score in scores.items() if score > best - 1e-9]
            group = tied.setdefault(tuple(id(region) for region in same), [])
            found.append(same[min(len(group), len(same) - 1)])
            group.append(n)
            if len(same) > 1 and len(group) > len(same):
                raise CountingError(f"loops of {same[0].line} cannot be told apart in the machine code")
        return found

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
        """[exponentials, bytes] that one round of a region has in its code, with loops that left the machine code. Of the
        sides of a branch all, or the largest, since equal ends of both sides may be joined."""
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

    def _rounds(self) -> list[np.ndarray]:
        """How often each loop of the machine code runs, in every program."""
        found: list[np.ndarray] = [np.empty(0)] * len(self.loops)
        for region in dict.fromkeys(self.match):
            parts = [n for n in range(len(self.loops)) if self.match[n] is region]
            unrolled = {n: self._unrolled(n, region) for n in parts}
            assert region.parent is not None
            entered = np.maximum(self.times[region.parent], 1)
            left = self.times[region] / entered
            for n in sorted(parts, key=lambda n: -unrolled[n]):
                runs = left / unrolled[n] if len(parts) == 1 else left // unrolled[n]
                left = left - runs * unrolled[n]
                found[n] = runs * entered
        return found

    def _unrolled(self, n: int, region: Region) -> int:
        """How many rounds of the kernel's loop are one of the machine code's."""
        least, most = self._static(region, largest=False), self._static(region, largest=True)
        blocks = [self.blocks[b] for b in self.own[n]]
        have = np.array([sum(b.exponentials for b in blocks), sum(b.bytes_moved for b in blocks)], float)
        if not most.any():
            self.unchecked.append(region.line)
            return 1
        kind = int(most[0] == 0)  # exponentials where there are any
        times = max(1, round(float(have[kind] / most[kind])))
        off = have < 0.95 * times * least
        off |= have > 1.05 * times * most
        if off.any():
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
        expected = sum(
            self.structure.exponentials(region) * float(times.sum()) * self.warps for region, times in self.times.items()
        )
        least, most = EXPONENTIALS_OFF
        if not least * expected <= exponentials <= most * expected:
            raise CountingError(
                f"the machine code executes {exponentials:.4g} exponentials a warp, the kernel has {expected:.4g}"
            )


def _all(structure: Structure) -> list[Region]:
    return list(structure.kernel.within())
