"""Peak memory of a scan beside its inputs and outputs, measured by the operating system in a process of its own."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from geomano_hpc.bench.kernels.problem import Shape
from geomano_hpc.errors import GeomanoError


def extra_memory(shape: Shape, kind: str, backend: str, precision: str = "float32") -> float | None:
    """Peak of forward and backward beside inputs and outputs, as a multiple of their bytes, with activations of a
    precision. None where there is no /proc to ask."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    command = [sys.executable, "-m", __name__, json.dumps(asdict(shape)), kind, backend, precision]
    # Large blocks come from the system and go back to it, so that none hides in memory that was freed before.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)}
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if found.returncode:
        raise GeomanoError(f"measuring memory of {backend} failed: {(found.stderr.strip().splitlines() or ['?'])[-1]}")
    return float(found.stdout)


def _measure(shape: Shape, kind: str, backend: str, precision: str) -> float:
    import torch

    from geomano_hpc.bench.kernels.problem import forward_backward

    def given(shape: Shape) -> dict[str, torch.Tensor]:
        tensors = shape.inputs(torch.float32)
        activations = {name: tensors[name].detach().to(getattr(torch, precision)) for name in ("x", "dt", "B", "C")}
        return tensors | {name: tensor.requires_grad_() for name, tensor in activations.items()}

    forward_backward(given(Shape(1, 2, 2, 2, 2, 2)), kind, backend)  # libraries and threads are there
    inputs = given(shape)
    before = kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # start a new peak
    outputs = forward_backward(inputs, kind, backend)
    peak = kilobytes("VmHWM")
    outputs_bytes = sum(tensor.nbytes for tensor in outputs.values())
    inputs_bytes = sum(tensor.nbytes for tensor in inputs.values())
    return ((peak - before) * 1024 - outputs_bytes) / (inputs_bytes + outputs_bytes)


def kilobytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    print(_measure(Shape(**json.loads(sys.argv[1])), *sys.argv[2:]))
