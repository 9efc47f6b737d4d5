"""What the recipes launch on a GPU, compiled ahead of time for seven of them: registers, shared memory, spills."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from geomano_hpc.bench import recipes
from geomano_hpc.bench.child import run_in_child
from geomano_hpc.bench.kernels.gpu_audit import call_of
from geomano_hpc.kernels.audit.calls import Call
from geomano_hpc.kernels.audit.compilation import COMPILE_ONLY, OLDEST, TARGETS, Row, rows_of


def recipe_calls() -> list[Call]:
    """The recipes in two precisions, with a fixed and a learnable R, with a full GPU, and with the dstates of the study
    scale_dstate."""
    calls = [call_of(name, recipes.scan(name)) for name in recipes.NAMES]
    precisions = [replace(call, dtype=dtype) for call, dtype in product(calls, ("float32", "bfloat16"))]
    others = [replace(call, learnable_correction=not call.learnable_correction) for call in calls]
    full = [call_of(name, recipes.full_scan(name)) for name in recipes.NAMES]
    return precisions + others + full + [replace(calls[0], dstate=dstate) for dstate in (32, 64)]


def further_calls() -> list[Call]:
    """A full dt, the other kind of scan, the third precision, the other corrections, and what other GPUs' numbers of
    multiprocessors lead to."""
    calls = [call_of(name, recipes.scan(name)) for name in recipes.NAMES]
    full = [call_of(name, recipes.full_scan(name)) for name in recipes.NAMES]
    found = [replace(call, low_rank=False, learnable_correction=True) for call in calls]
    found += [replace(call, kind="1d" if call.kind == "2d" else "2d") for call in calls]
    found += [replace(call, dtype="float16") for call in calls]
    found += [
        replace(call, correction=correction, learnable_correction=False)
        for call, correction in product(calls, ("none", "state"))
    ]
    return found + [replace(call, processors=count) for call, count in product((*calls, *full), (72, 132, 304))]


def jobs(targets: Sequence[str] = tuple(TARGETS)) -> list[tuple[Call, str]]:
    """The calls of the recipes for every GPU, and the further ones for the oldest of each maker. RDNA, which no
    recipe asks for, gets the recipes as they are."""
    plain = [call_of(name, recipes.scan(name)) for name in recipes.NAMES]
    main = [target for target in targets if target not in COMPILE_ONLY]
    oldest = [target for target in OLDEST if target in targets]
    rest = [target for target in COMPILE_ONLY if target in targets]
    return [*product(recipe_calls(), main), *product(further_calls(), oldest), *product(plain, rest)]


def compile_all() -> list[Row]:
    """In a process of its own, without Triton's interpreter."""
    return [Row(**row) for row in run_in_child(compile_jobs, environment={"TRITON_INTERPRET": None})]


def compile_jobs(workers: int = 2) -> list[dict[str, Any]]:
    calls, targets = zip(*jobs(), strict=True)
    with ProcessPoolExecutor(workers) as pool:
        return [asdict(replace(row, blocks=[], ttgir="")) for rows in pool.map(rows_of, calls, targets) for row in rows]


def compilation_table(rows: Sequence[Row]) -> list[str]:
    lines = [f"{'kernel':72} {'target':8} registers  shared  spills  scalar spills"]
    for row in rows:
        counts = f"{row.registers:9} {row.shared_bytes:7} {row.spill_bytes:7} {row.scalar_spills:14}"
        lines.append(f"{row.kernel:72} {row.target:8} {counts}")
    return lines
