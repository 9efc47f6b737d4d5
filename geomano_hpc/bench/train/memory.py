"""Peak memory of a training step beside the model and its data, in a process of its own."""

from dataclasses import replace
from typing import Any

from geomano_hpc.bench.child import run_in_child
from geomano_hpc.bench.memory import peak_kib, resident_kib, start_a_new_peak


def step_memory(case: dict[str, Any], model: str) -> float:
    """MiB that a forward and backward of one batch need on top of parameters, optimiser, input and target."""
    return float(run_in_child(measure, case, model))


def measure(content: dict[str, Any], model: str) -> float:
    from geomano_hpc.bench.train.efficiency import Case, configurations, step_of
    from geomano_hpc.training.engines.heap import keep_freed_memory

    keep_freed_memory()  # as a training does
    case = Case.from_json(content)
    config = configurations(case)[model]
    small = step_of(replace(case, size=replace(case.size, grid=(4, 4), batch=1)), config)
    small.train()  # libraries and threads are there
    step = step_of(case, config)
    before = resident_kib()
    start_a_new_peak()
    step.train()
    return (peak_kib() - before) / 1024
