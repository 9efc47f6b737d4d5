"""Checks that run in Triton's interpreter.

Triton reads TRITON_INTERPRET when kernels are defined, and other tests define them for compilation. So such checks run
in a process of their own, which a test of the same file starts.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
NEWER = os.environ.get("GEOMANO_NEWER_TRITON", "")  # a folder with a newer release, which make test sets
NO_NEWER = "GEOMANO_NEWER_TRITON names no folder with a newer triton; make test sets it"


def check_in_the_interpreter(file: str, *options: str, newer: bool = False) -> None:
    """Every check of a file, or those that pytest's options choose. Without coverage, which doubles the time."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    variables["TRITON_INTERPRET"] = "1"
    if newer:
        inherited = variables.get("PYTHONPATH")
        variables |= {"PYTHONPATH": os.pathsep.join([NEWER, *([inherited] if inherited else [])])}
        variables["EXPECTED_TRITON"] = "3.9"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, file]
    run = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert "passed" in run.stdout
    assert "skipped" not in run.stdout


@contextmanager
def fast_interpreter() -> Iterator[None]:
    """Scans on whole tiles, and Triton's language patched once a launch instead of at every call."""
    from triton.runtime import interpreter

    from geomano_hpc.kernels.audit import traffic

    own = interpreter.ScanOps.generic_scan
    interpreter.ScanOps.generic_scan = _scan_whole_tiles
    try:
        with traffic.patched_once():
            yield
    finally:
        interpreter.ScanOps.generic_scan = own


def _scan_whole_tiles(self: Any, inputs: Any) -> list[Any]:
    """The interpreter's scan, with the combine function on whole tiles in log2 steps instead of on scalars."""
    data = [tensor.handle.data for tensor in inputs]
    length, step = data[0].shape[self.axis], 1
    index = np.arange(length).reshape([-1 if axis == self.axis else 1 for axis in range(data[0].ndim)])

    def tensors(arrays: list[np.ndarray]) -> list[Any]:
        return [self.to_tensor(array, tensor.dtype) for array, tensor in zip(arrays, inputs, strict=True)]

    while step < length:
        earlier = tensors([np.roll(array, step, self.axis) for array in data])
        combined = self.combine_fn.fn(*earlier, *tensors(data))
        data = [np.where(index >= step, c.handle.data, d) for c, d in zip(combined, data, strict=True)]
        step *= 2
    return tensors(data)
