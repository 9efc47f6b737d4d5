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
    """The recipes, and Darcy with the dstates of the study scale_dstate. Another batch, grid or number of
    multiprocessors compiles nothing new."""
    calls = [call_of(name, recipes.scan(name)) for name in recipes.NAMES]
    return calls + [replace(calls[0], dstate=dstate) for dstate in (32, 64)]


def further_calls() -> dict[str, list[Call]]:
    """What else a model may ask for, each for the oldest GPU of a maker: another precision, correction, kind of scan, a
    full dt, rings, points at another distance, or at one that differs by axis, and an exact hold on both grids."""
    calls = [call_of(name, recipes.scan(name)) for name in recipes.NAMES]
    nvidia, amd = OLDEST
    changes: dict[str, list[dict[str, Any]]] = {
        nvidia: [{"dtype": "bfloat16"}, {"learnable_correction": True, "correction": "state"}],
        amd: [{"dtype": "float16", "low_rank": False}, {"correction": "none", "learnable_correction": False}],
    }
    found = {target: [replace(call, **change) for call in calls for change in changes[target]] for target in OLDEST}
    found[nvidia] += [replace(call, kind="1d" if call.kind == "2d" else "2d") for call in calls]
    for target in OLDEST:
        grid, sequence = (replace(call, low_rank=target == nvidia) for call in calls)
        spaced = replace(grid, own=(0.5, 0.5))
        found[target] += [replace(sequence, own=(0.5, 0.5)), spaced, replace(grid, rings=3)]
        found[target] += [replace(spaced, stretch=0.5), replace(spaced, stretch=0.5, rings=3)]
        found[target] += [replace(grid, hold=(1.0, 1.0)), replace(spaced, hold=(2.0, 2.0))]
        found[target] += [replace(sequence, hold=(2.0, 2.0), own=(0.5, 0.5))]
    return found


def jobs(targets: Sequence[str] = tuple(TARGETS)) -> list[tuple[Call, str]]:
    """The calls of the recipes for every GPU, and the further ones for the oldest of each maker. RDNA, which no
    recipe asks for, gets the recipes as they are."""
    main = [target for target in targets if target not in COMPILE_ONLY]
    rest = [target for target in COMPILE_ONLY if target in targets]
    further = [(call, target) for target, calls in further_calls().items() if target in targets for call in calls]
    return [*product(recipe_calls(), main), *further, *product(recipe_calls()[: len(recipes.NAMES)], rest)]


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
