"""Peak memory of a scan beside its inputs and outputs, in a process of its own."""

from dataclasses import asdict, replace
from typing import Any

import torch

from geomano_hpc.bench.child import run_in_child
from geomano_hpc.bench.kernels.problem import Scan, Tensors
from geomano_hpc.bench.memory import can_start_a_new_peak, peak_kib, resident_kib, start_a_new_peak


def extra_memory(scan: Scan, backend: str, precision: str = "float32") -> float | None:
    """Peak of forward and backward beside inputs and outputs, as a multiple of their bytes, with activations of a
    precision. None where there is no /proc to ask."""
    if not can_start_a_new_peak():
        return None
    # Large blocks come from the system and go back to it, so that none hides in memory that was freed before.
    environment = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)}
    return float(run_in_child(measure, asdict(scan), backend, precision, environment=environment))


def measure(content: dict[str, Any], backend: str, precision: str) -> float:
    scan = Scan(**content)
    small = replace(scan, batch=1, height=2, width=2, channels=2, dstate=2, rank=2)
    small.forward_backward(_given(small, precision), backend)  # libraries and threads are there
    inputs = _given(scan, precision)
    before = resident_kib()
    start_a_new_peak()
    outputs = scan.forward_backward(inputs, backend)
    peak = peak_kib()
    outputs_bytes = sum(tensor.nbytes for tensor in outputs.values())
    inputs_bytes = sum(tensor.nbytes for tensor in inputs.values())
    return ((peak - before) * 1024 - outputs_bytes) / (inputs_bytes + outputs_bytes)


def _given(scan: Scan, precision: str) -> Tensors:
    tensors = scan.inputs(torch.float32)
    activations = {name: tensors[name].detach().to(getattr(torch, precision)) for name in ("x", "dt", "B", "C")}
    return tensors | {name: tensor.requires_grad_() for name, tensor in activations.items()}
