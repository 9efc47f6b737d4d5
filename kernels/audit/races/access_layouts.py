"""The layouts that the compiler gives to each load and store of a kernel, by line of its source.

The interpreter of `check.py` knows which line of a kernel loads or stores, and the compiled kernel's TTGIR says with
which layout. A kernel that was defined for the interpreter cannot be compiled, so a second process, which lives as long
as this one, defines it again and compiles it, up to TTGIR, in about a second. What it found is kept in the cache
(GEOMANO_CACHE), under a key of the sources, the version of Triton, the variant and the GPU.
"""

import atexit
import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from geomano_hpc.atomic import write_json
from geomano_hpc.kernels.audit.compilation import TARGETS
from geomano_hpc.kernels.audit.races.memory import Layouts, Place
from geomano_hpc.kernels.audit.races.threads import MANY, Blocked, Holders, Layout, Linear, Slice, holders
from geomano_hpc.kernels.cache import cache_folder

_KERNELS = Path(__file__).parents[2] / "triton"
_TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int32: "i32", torch.int64: "i64"}
# AMD's own loads and stores name the type of the values, tt's that of the pointers.
_ACCESS = re.compile(r"^.*?\b(?:tt\.|amd\w*\.buffer_)(load|store)\b.* : (\S.*?) loc\((.*)\)\s*$", re.MULTILINE)
# File, line, whether it stores, shape, and the layout as the compiler writes it ("" for a scalar).
Access = tuple[str, int, bool, tuple[int, ...], str]


def compiled_layouts(target: str = "sm_80") -> Layouts:
    """For `races.checked`: the threads of an access as the compiler chose them. An access that is repeated with several
    layouts, or that the compiled kernel does not have at that line, counts as made by many threads."""

    def of_kernel(function: Any, arguments: dict[str, Any]) -> Any:
        found: dict[Any, set[str]] = defaultdict(set)
        for file, line, stores, shape, layout in accesses_of(function, arguments, target):
            found[file, line, stores, shape].add(layout)

        def threads(place: Place, shape: tuple[int, ...], stores: bool) -> Holders:
            layouts = found.get((Path(place[0]).name, place[1], stores, tuple(shape)))
            if not layouts:
                return Holders(np.full(shape, MANY, np.int32), True, True)
            if layouts == {""}:
                return Holders(np.zeros(shape, np.int32), True, True)
            each = [holders(tuple(shape), parse_layout(layout)) for layout in sorted(layouts)]
            same = np.logical_and.reduce([found.first == each[0].first for found in each])
            first = np.where(same, each[0].first, MANY)
            return Holders(first, any(found.lanes for found in each), any(found.warps for found in each))

        return threads

    return of_kernel


def accesses_of(function: Any, arguments: dict[str, Any], target: str) -> list[Access]:
    """Loads and stores of a kernel, specialised for these arguments (its constants and options among them)."""
    request = json.dumps(_request(function, arguments, target), sort_keys=True)
    rows = _known(request, _sources(Path(inspect.getfile(function))))
    return [(file, line, stores, tuple(shape), layout) for file, line, stores, shape, layout in rows]


@cache
def _known(request: str, sources: str) -> list[Any]:
    import triton

    key = hashlib.sha256(f"{triton.__version__} {sources} {request}".encode()).hexdigest()[:32]
    path = cache_folder() / "layouts" / f"{key}.json"
    if path.exists():
        rows: list[Any] = json.loads(path.read_text(encoding="utf-8"))
        return rows
    rows = [list(access) for access in read_accesses(_ask(request))]
    write_json(path, rows)
    return rows


@cache
def _sources(file: Path) -> str:
    files = [file, *sorted(_KERNELS.rglob("*.py")), *sorted(Path(__file__).parent.glob("*layout*.py"))]
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in files)).hexdigest()


def _request(function: Any, arguments: dict[str, Any], target: str) -> dict[str, Any]:
    names = list(inspect.signature(function).parameters)
    described: dict[str, Any] = {}
    for name in names:
        value = arguments[name] if name in arguments else inspect.signature(function).parameters[name].default
        if isinstance(value, torch.Tensor):
            described[name] = {"pointer": _TYPES[value.dtype], "aligned": value.data_ptr() % 16 == 0}
        else:
            described[name] = {"value": getattr(value, "value", value)}
    options = {name: value for name, value in arguments.items() if name not in names}
    return {
        "module": function.__module__, "kernel": function.__name__, "target": TARGETS[target],
        "arguments": described, "options": options,
    }  # fmt: skip


@cache
def _compiler() -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-W", "ignore", "-m", "geomano_hpc.kernels.audit.races.layout_compiler"]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    return process


def _ask(request: str) -> str:
    process = _compiler()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(request + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    assert answer, f"the compiler of layouts ended at {request}"
    found: dict[str, str] = json.loads(answer)
    assert "ttgir" in found, found["error"]
    return found["ttgir"]


def read_accesses(ttgir: str) -> list[Access]:
    """Loads and stores of a module that is printed with its locations."""
    aliases = dict(re.findall(r"^(#\w+) = (#ttg\..*?)$", ttgir, re.MULTILINE))
    # The innermost function of an inlined call, and what a name stands for, are written first.
    locations = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", ttgir, re.MULTILINE))

    def places(text: str) -> tuple[str, int] | None:
        if match := re.match(r'"([^"]*)":(\d+):\d+', text):
            return Path(match[1]).name, int(match[2])
        match = re.search(r"#loc\d*", text)
        return places(locations[match[0]]) if match and match[0] in locations else None

    found = []
    for operation, kind, where in _ACCESS.findall(ttgir):
        place = places(where)
        if place is None:
            continue
        shape, layout = _tensor(kind)
        for name in sorted(aliases, key=len, reverse=True):
            layout = re.sub(rf"{name}\b", lambda _, name=name: aliases[name], layout)  # type: ignore[misc]
        found.append((*place, operation == "store", shape, layout))
    return found


def _tensor(kind: str) -> tuple[tuple[int, ...], str]:
    """tensor<8x4x!tt.ptr<f32>, #layout> -> (8, 4), #layout"""
    match = re.match(r"tensor<((?:\d+x)+)(?:!tt\.ptr<[^>]*>|\w+), (.*)>$", kind)
    return (tuple(int(size) for size in match[1].split("x")[:-1]), match[2]) if match else ((), "")


@cache
def parse_layout(text: str) -> Layout:
    if match := re.match(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>$", text):
        return Slice(int(match[1]), parse_layout(match[2]))
    lists = {name: json.loads(value) for name, value in re.findall(r"(\w+) = (\[[^=}]*\])", text)}
    if text.startswith("#ttg.blocked"):
        names = ("sizePerThread", "threadsPerWarp", "warpsPerCTA", "order")
        return Blocked(*(tuple(lists[name]) for name in names))
    assert text.startswith("#ttg.linear"), f"a layout that is not known: {text}"
    return Linear(*(tuple(tuple(base) for base in lists[name]) for name in ("register", "lane", "warp")))
