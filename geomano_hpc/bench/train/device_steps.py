"""Benchmark of training steps on a GPU: GeoMaNO against Transolver in the paper's configurations, with peak memory.

The rows are those of efficiency.py, from medians, with the spread beside. Everything here runs on a CPU, too.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from geomano_hpc.bench.gpu import describe_gpu
from geomano_hpc.bench.measurement import Measurement
from geomano_hpc.bench.record import make_record, write_record
from geomano_hpc.bench.timers import Spread, Timer, Work, peak_mib
from geomano_hpc.bench.train.bare_step import BareStep
from geomano_hpc.bench.train.efficiency import Case, check_gradients, configurations, ratios, row_of, step_of
from geomano_hpc.progress import progress


def bench_steps(
    cases: dict[str, Case],
    repeats: int,
    out: Path | None,
    device: torch.device,
    timer: Timer,
    peak: Callable[[Work, torch.device], float] = peak_mib,
    show_progress: bool = False,
) -> dict[str, Any]:
    """The bars of efficiency.py are a CPU's, so ratios have none here."""
    rows: list[dict[str, Any]] = []
    measurements: list[Measurement] = []
    with progress("bench", 2 * len(cases), shown=show_progress) as advance:
        for problem, case in cases.items():
            check_gradients(case, device)
            found = {}
            for name, config in configurations(case).items():
                step = step_of(case, config, device)
                step.train()
                step.update()  # the optimiser's states are there
                memory = peak(step.train, device)
                spreads = _spreads(step, repeats, timer)
                seconds = {part: spread.median / 1e3 for part, spread in spreads.items()}
                row = row_of(problem, name, case, config, step.model, seconds, memory)
                found[name] = {**row, "step_ms": {part: spread.to_json() for part, spread in spreads.items()}}
                advance(f"{problem} {name}")
            rows += found.values()
            measurements += ratios(problem, case, found, bars=False)
    settings = {
        "cases": {problem: case.to_json() for problem, case in cases.items()},
        "device": str(device),
        "repeats": repeats,
        "timer": type(timer).__name__,
    }
    content = make_record("train", settings, rows, measurements, gpu=describe_gpu(device))
    write_record(out, content)
    return content


def _spreads(step: BareStep, repeats: int, timer: Timer) -> dict[str, Spread]:
    """A step starts without gradients, and an update with some."""
    return {
        "train": timer.spread(step.train, repeats, step.clear),
        "update": timer.spread(step.update, repeats, step.train),
        "infer": timer.spread(step.infer, repeats),
    }


def steps_table(content: dict[str, Any]) -> list[str]:
    """Milliseconds of a call on a batch: median and quartiles."""
    lines = [f"{'problem':13}  {'model':10}  {'part':6}  {'median':>9} {'quartiles':>19}  ms per batch"]
    for row in content["rows"]:
        for part, times in row["step_ms"].items():
            quartiles = f"{times['lower']:.2f}-{times['upper']:.2f}"
            lines.append(f"{row['problem']:13}  {row['model']:10}  {part:6}  {times['median']:9.2f} {quartiles:>19}")
    gpu = content["gpu"]
    return [*lines, f"{gpu['gpu']}, driver {gpu['driver']}; self-test: {gpu['self_test']}"]
