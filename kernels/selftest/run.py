"""Runs the cases of the self-test: error against the judge on the same device, and the same bits in every repeat."""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from geomano_hpc.errors import BackendError, in_one_line
from geomano_hpc.kernels.selftest.cases import Case, ScanCase, Tensors

REPEATS = 20
_LOST = ("cuda error", "hip error", "device-side assert", "illegal memory access")  # the device is of no use after it


@dataclass(frozen=True)
class CaseResult:
    """How a case went. The tensor with the largest error for its tolerance stands for all."""

    name: str
    passed: bool
    error: float | None  # relative to the largest value of `tensor`; None where nothing could be compared
    tolerance: float | None
    tensor: str
    same_bits: int  # repeats that gave the bits of the first
    repeats: int
    seconds: float  # with compilation and judge
    reason: str  # why it failed; empty if it passed

    @property
    def line(self) -> str:
        if self.error is None:
            return f"{self.name}: {self.reason}"
        found = f"{self.name}: error {self.error:.1e} of {self.tolerance:.0e} ({self.tensor})"
        return f"{found}, {self.same_bits} of {self.repeats} repeats bit-equal, {self.seconds:.1f} s"

    def to_json(self) -> dict[str, Any]:
        finite = self.error is not None and math.isfinite(self.error)
        return {**asdict(self), "error": self.error if finite else None}


def run_cases(
    cases: Sequence[Case],
    device: torch.device,
    backend: str,
    repeats: int = REPEATS,
    ended: Callable[[CaseResult], None] = lambda result: None,
) -> list[CaseResult]:
    """Every case, unless the device is lost on the way: then the rest fails without being run."""
    results: list[CaseResult] = []
    lost = ""
    with on_device(device), _exact_torch():
        for case in cases:
            result = _not_run(case, repeats, lost) if lost else _result(case, device, backend, repeats)
            if not lost and any(words in result.reason.lower() for words in _LOST):
                lost = f"not run: the device was lost in {case.name}"
            results.append(result)
            ended(result)
    return results


def check_device(device: torch.device) -> None:
    """A first sum on the device, and torch's own float64 scan there against the one on the CPU: what fails here is no
    fault of a kernel."""
    small = ScanCase("2d", 1, 4, 5, channels=3, dstate=2, rank=2)
    try:
        there = small.judge(small.inputs(device))
    except (RuntimeError, AssertionError) as error:  # the second where torch is built without CUDA
        raise BackendError(f"{device} cannot be used: {in_one_line(error)}") from error
    here = small.judge(small.inputs(torch.device("cpu")))
    wrong_by, _, name = _largest_error(there, here, lambda dtype: 1e-10)
    if not wrong_by <= 1e-10:
        raise BackendError(
            f"plain torch on {device} is wrong by {wrong_by:.1e} ({name} of a float64 scan): check torch and the driver"
        )


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _result(case: Case, device: torch.device, backend: str, repeats: int) -> CaseResult:
    begin = time.perf_counter()
    try:
        inputs = case.inputs(device)
        with _unwritten_memory_is_nan():
            first = case.compute(inputs, backend)
        equal = sum(_same_bits(first, case.compute(inputs, backend)) for _ in range(repeats))
        error, tolerance, name = _largest_error(first, case.judge(inputs), case.tolerance)
    except torch.OutOfMemoryError as out_of_memory:
        raise BackendError(
            f"{device} has too little free memory for the self-test; stop what else runs there and try again"
        ) from out_of_memory
    except OSError as fault:  # no room in Triton's cache, no compiler: of the machine, not of the kernels
        raise BackendError(f"the self-test on {device} could not run: {in_one_line(fault)}") from fault
    except Exception as failure:  # of any kind: a kernel that does not compile, a launch that fails
        if "out of memory" in str(failure):  # as the driver says it, where torch does not ask for it
            reason = in_one_line(failure)
            raise BackendError(f"{device} has too little free memory for the self-test: {reason}") from failure
        seconds = time.perf_counter() - begin
        return CaseResult(case.name, False, None, None, "", 0, repeats, seconds, in_one_line(failure)[:1000])
    seconds = time.perf_counter() - begin
    reasons = []
    if not error <= tolerance:
        reasons.append(f"{name} is wrong by {error:.1e}")
    if equal < repeats:
        reasons.append(f"{repeats - equal} of {repeats} repeats gave other bits")
    return CaseResult(case.name, not reasons, error, tolerance, name, equal, repeats, seconds, ", ".join(reasons))


def _not_run(case: Case, repeats: int, reason: str) -> CaseResult:
    return CaseResult(case.name, False, None, None, "", 0, repeats, 0.0, reason)


def _same_bits(one: Tensors, other: Tensors) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def _largest_error(
    found: Tensors, expected: Tensors, tolerance: Callable[[torch.dtype], float]
) -> tuple[float, float, str]:
    """Error, tolerance and name of the tensor that is worst for its precision; NaN is worse than anything."""
    worst = (-1.0, 0.0, 1.0, "")
    for name, right in expected.items():
        tensor = found[name]
        if tensor.shape != right.shape:
            raise ValueError(f"{name} has the shape {tuple(tensor.shape)}, expected {tuple(right.shape)}")
        scale = right.abs().max().clamp_min(1e-30)
        error = float((tensor.to(right) - right).abs().max() / scale)
        allowed = tolerance(tensor.dtype)
        badness = math.inf if math.isnan(error) else error / allowed
        if badness > worst[0]:
            worst = (badness, error, allowed, name)
    return worst[1:]


@contextlib.contextmanager
def _unwritten_memory_is_nan() -> Iterator[None]:
    """torch fills what it allocates with NaN here, so that an output that nobody writes is seen."""
    before, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before, warn_only=warn_only)


@contextlib.contextmanager
def _exact_torch() -> Iterator[None]:
    """Where plain torch stands in for a kernel, its convolutions keep float32 and one order of additions. Autocast is
    off, should the caller be in it."""
    autocast = [torch.autocast(device, enabled=False) for device in ("cpu", "cuda")]
    exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    with autocast[0], autocast[1], exact, torch.enable_grad(), torch.inference_mode(False):
        yield
