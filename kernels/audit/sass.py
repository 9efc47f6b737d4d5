"""The machine code (SASS) of a compiled kernel as basic blocks and loops, with its instructions by class.

Disassembled by the nvdisasm of Triton's wheel, with the source line of every instruction. Loops are the natural loops
of the control flow, nested by the blocks that they hold.
"""

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLASSES = {
    "MUFU": r"MUFU",
    "FFMA": r"FFMA",
    "FMUL": r"FMUL",
    "FADD": r"FADD",
    "SHFL": r"SHFL|REDUX|VOTE|MATCH",
    "LDS/STS": r"LDS|STS|LDSM|STSM|ATOMS",
    "LDG": r"LDG|LD\b|LDL",
    "STG": r"STG|ST\b|STL|RED\b|ATOM",
    "FSEL": r"FSEL|SEL|PRMT|USEL",
    "SETP": r"FSETP|ISETP|PLOP3|UISETP|P2R|R2P|UPLOP|DSETP|HSETP|FSET|VOTEU",
    "BAR": r"BAR|WARPSYNC|BSSY|BSYNC|DEPBAR|LDGDEPBAR|MEMBAR|ERRBAR|BREAK|BMOV|SYNCS|FENCE|CCTL",
    "MOV": r"MOV|CS2R|S2R|R2UR|UMOV|S2UR|IMAD\.MOV|HFMA2\.MMA|NOP|LDC|ULDC|UR2R",
    "INT": r"IMAD|UIMAD|IADD|UIADD|LEA|ULEA|LOP|ULOP|SHF|USHF|SHL|SHR|IABS|I2F|F2I|I2I|IMNMX|UIMNMX|VIMNMX|VIADD|SGXT|"
    r"USGXT|BREV|FLO|UFLO|POPC|ISCADD|IDP|UI2F|I2FP|F2F|F2FP|BMSK|UBMSK|XMAD|BFE|BFI",
    "BRA": r"BRA|EXIT|CALL|RET|BRX|JMP|RPCMOV|KILL|BPT|ACQBULK|PREEXIT",
}
OTHER = "other"
_PATTERNS = {name: re.compile(rf"(?:{pattern})") for name, pattern in CLASSES.items()}
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_PARTS = re.compile(r"(@!?U?P\w+\s+)?([A-Z0-9_]+(?:\.[A-Z0-9_]+)*)")
_WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "16": 2, "U8": 1, "S8": 1, "8": 1}


@dataclass
class Block:
    """Instructions without a jump in between."""

    classes: dict[str, int] = field(default_factory=dict)
    exponentials: int = 0  # MUFU.EX2
    bytes_moved: int = 0  # to and from global memory, of a thread
    lines: dict[str, int] = field(default_factory=dict)  # instructions by file:line
    last_line: str = ""
    following: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(self.classes.values())


@dataclass
class Loop:
    blocks: set[int]
    head: int
    tails: list[int]
    parent: int | None = None


def instruction_class(opcode: str) -> str:
    # MOV before INT and SETP before FSEL: IMAD.MOV is a copy, and so on.
    order = ("MOV", "SETP", *(name for name in CLASSES if name not in ("MOV", "SETP")))
    return next((name for name in order if _PATTERNS[name].match(opcode)), OTHER)


def disassemble(cubin: bytes) -> str:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-c", "-g", file.name], capture_output=True, text=True, check=True)
    return done.stdout


def blocks_of(text: str) -> list[Block]:
    """The blocks of the kernel in the order of their addresses; the first is where it starts."""
    instructions: list[tuple[str, str, str, str]] = []
    labels: dict[str, int] = {}
    line = ""
    for raw in text.splitlines():
        stripped = raw.strip()
        if label := re.match(r"^(\.L_x?_?\d+):", stripped):
            labels[label[1]] = len(instructions)
        elif where := re.search(r'//## File "([^"]*)", line (\d+)', raw):
            line = f"{where[1].rpartition('/')[2]}:{where[2]}"
        elif found := _INSTRUCTION.search(raw):
            parts = _PARTS.match(found[2])
            assert parts, raw
            instructions.append((found[2], (parts[1] or "").strip(), parts[2], line))
    starts = _starts(instructions, labels)
    number = {start: n for n, start in enumerate(starts)}
    blocks = []
    for n, start in enumerate(starts):
        end = starts[n + 1] if n + 1 < len(starts) else len(instructions)
        classes: Counter[str] = Counter()
        lines: Counter[str] = Counter()
        block = Block()
        for _, _, opcode, place in instructions[start:end]:
            classes[instruction_class(opcode)] += 1
            lines[place] += 1
            block.exponentials += opcode == "MUFU.EX2"
            block.bytes_moved += _bytes(opcode)
        block.classes, block.lines, block.last_line = dict(classes), dict(lines), instructions[end - 1][3]
        text_, predicate, opcode, _ = instructions[end - 1]
        if target := _target(text_, opcode, labels):
            block.following.append(number[target[0]])
        ends = opcode.startswith(("EXIT", "RET", "KILL")) or (opcode.startswith("BRA") and not _conditional(text_))
        if n + 1 < len(starts) and (predicate or not ends):
            block.following.append(n + 1)
        blocks.append(block)
    return blocks


def _starts(instructions: list[tuple[str, str, str, str]], labels: dict[str, int]) -> list[int]:
    starts = {0, *(at for at in labels.values() if at < len(instructions))}
    for n, (_, _, opcode, _) in enumerate(instructions[:-1]):
        if opcode.startswith(("BRX", "JMX")):
            raise ValueError("an indirect jump: the control flow cannot be read from the machine code")
        if opcode.startswith(("BRA", "CALL", "EXIT", "RET", "KILL")):
            starts.add(n + 1)
    return sorted(starts)


def _conditional(text: str) -> bool:
    """BRA.DIV and BRA with a predicate among its operands may fall through."""
    return bool(re.match(r"BRA(\.\w+)* !?U?P\w", text)) or text.startswith("BRA.DIV")


def _target(text: str, opcode: str, labels: dict[str, int]) -> list[int]:
    """A call is a jump that may come back: ptxas leaves loops with CALL.REL.NOINC, too."""
    found = re.search(r"`\((\.L_x?_?\d+)\)", text)
    return [labels[found[1]]] if opcode.startswith(("BRA", "CALL")) and found and found[1] in labels else []


def _bytes(opcode: str) -> int:
    first, *rest = opcode.split(".")
    if first not in ("LDG", "STG"):
        return 0
    return next((_WIDTHS[part] for part in rest if part in _WIDTHS), 4)


def loops_of(blocks: list[Block]) -> list[Loop]:
    """Natural loops, outer before inner; those with one head are one loop."""
    reached = _reached(blocks)
    dominators = _dominators(blocks, reached)
    before: dict[int, list[int]] = {n: [] for n in reached}
    for n in reached:
        for following in blocks[n].following:
            before[following].append(n)
    found: dict[int, Loop] = {}
    for tail in sorted(reached):
        for head in blocks[tail].following:
            if head not in dominators[tail]:
                continue
            loop = found.setdefault(head, Loop({head}, head, []))
            loop.tails.append(tail)
            waiting = [tail]
            while waiting:
                block = waiting.pop()
                if block not in loop.blocks:
                    loop.blocks.add(block)
                    waiting += before[block]
    loops = sorted(found.values(), key=lambda loop: (-len(loop.blocks), loop.head))
    for n, loop in enumerate(loops):
        around = [m for m in range(n) if loop.blocks < loops[m].blocks]
        loop.parent = max(around, default=None)  # the smallest, since larger ones come first
    return loops


def reachable(blocks: list[Block]) -> set[int]:
    return _reached(blocks)


def _reached(blocks: list[Block]) -> set[int]:
    found, waiting = {0}, [0]
    while waiting:
        for following in blocks[waiting.pop()].following:
            if following not in found:
                found.add(following)
                waiting.append(following)
    return found


def _dominators(blocks: list[Block], reached: set[int]) -> dict[int, set[int]]:
    before: dict[int, set[int]] = {n: set() for n in reached}
    for n in reached:
        for following in blocks[n].following:
            before[following].add(n)
    found = {n: set(reached) for n in reached}
    found[0] = {0}
    changed = True
    while changed:
        changed = False
        for n in sorted(reached - {0}):
            new = {n} | set.intersection(*(found[m] for m in before[n]))
            if new != found[n]:
                found[n], changed = new, True
    return found


def as_json(blocks: list[Block]) -> list[dict[str, Any]]:
    return [vars(block) for block in blocks]
