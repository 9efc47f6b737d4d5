"""Which backends can compute a scan here, and the choice between them: always said, never silent."""

import importlib
import importlib.util
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import torch

from geomano_hpc.errors import BackendError, ConfigError
from geomano_hpc.kernels.cpu import extension as cpu_extension
from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BackendStatus:
    """Whether a backend can compute on a device of this machine, and why or why not."""

    name: str
    available: bool
    reason: str


class Backend(Protocol):
    """A module that computes scans. `reference` is not one of them: it is plain torch with torch's own gradients."""

    def carries_size(self, inputs: ScanInputs, settings: ScanSettings) -> int:
        """How many numbers of the state's precision the forward keeps for the backward."""

    def forward(
        self, inputs: ScanInputs, settings: ScanSettings, keep_carries: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """y and the carries (empty unless they are to be kept)."""

    def backward(
        self, dy: torch.Tensor, inputs: ScanInputs, settings: ScanSettings, carries: torch.Tensor, needs_R: bool
    ) -> ScanInputs:
        """The gradient of every input; R's only if it is needed."""


def _triton(device: str) -> tuple[bool, str]:
    if importlib.util.find_spec("triton") is None:
        return False, "triton is not installed"
    if device != "cpu":
        return True, f"Triton {importlib.import_module('triton').__version__} kernels"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return True, "Triton's interpreter (TRITON_INTERPRET=1): for tests, very slow"
    return False, "needs a GPU that torch sees; the tensors are on the CPU"


def _cpu(device: str) -> tuple[bool, str]:
    if device != "cpu":
        return False, f"computes on the CPU only; the tensors are on {device}"
    reason = cpu_extension.unavailable_because()
    return reason is None, reason or cpu_extension.describe()


def _torch(device: str) -> tuple[bool, str]:
    return True, "plain torch in chunks, needs no compiler; much slower than a kernel"


def _reference(device: str) -> tuple[bool, str]:
    return True, "plain torch, any precision; a loop over the grid, so slow: the judge of the others"


_STATUS: dict[str, Callable[[str], tuple[bool, str]]] = {
    "triton": _triton,
    "cpu": _cpu,
    "torch": _torch,
    "reference": _reference,
}


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def backend_statuses(device: str | None = None) -> list[BackendStatus]:
    """Every backend for tensors on a device, the fastest first."""
    return [BackendStatus(name, *status(device or default_device())) for name, status in _STATUS.items()]


def choose_backend(requested: str, device: str | None = None) -> str:
    """The backend for tensors on a device. `auto` takes the fastest that is available, which is never Triton's
    interpreter, and logs it once; it is refused where Triton's kernels failed their self-test on this GPU. A name is
    taken or refused."""
    return _choose(requested, device or default_device())


@lru_cache
def _choose(requested: str, device: str) -> str:
    statuses = {status.name: status for status in backend_statuses(device)}
    if requested == "auto":
        candidates = [s for s in statuses.values() if s.available and not (s.name == "triton" and device == "cpu")]
        name = candidates[0].name
        if name == "triton":
            _refuse_after_a_failure()
        logger.info("scan backend: %s (%s)", name, candidates[0].reason)
        return name
    if requested not in statuses:
        raise ConfigError(f"unknown scan backend {requested!r}; choose auto or one of {', '.join(statuses)}")
    if not statuses[requested].available:
        raise BackendError(f"scan backend {requested!r} is not available: {statuses[requested].reason}")
    return requested


def ready_backend(requested: str, device: str | None = None) -> BackendStatus:
    """The backend that will compute, compiled and loaded, so that what is missing is said before the work starts. On a
    GPU that has no verdict of the self-test yet, its short form runs now."""
    name = choose_backend(requested, device)
    if name == "cpu":
        cpu_extension.load_library()
    status = next(status for status in backend_statuses(device) if status.name == name)
    if name == "triton" and (device or default_device()) != "cpu":
        return replace(status, reason=f"{status.reason}, self-test {_ask_for_the_verdict(requested)}")
    return status


def _refuse_after_a_failure() -> None:
    """Asks for what is kept, and tests nothing: this runs in the first scan of a process."""
    from geomano_hpc.kernels.selftest import verdict  # which computes scans itself

    gpu = verdict.current_device()
    if gpu is None or verdict.is_skipped():
        return
    kept = verdict.kept_verdict(verdict.identify(gpu))
    if kept is not None and not kept.passed:
        raise verdict.refuse(kept)


def _ask_for_the_verdict(requested: str) -> str:
    """What it says, in words."""
    from geomano_hpc.kernels.selftest import verdict

    gpu = verdict.current_device()
    found = None if gpu is None else verdict.asked_verdict(gpu)
    if found is None:
        return "skipped"
    if found.passed:
        return found.summary
    if requested == "auto":
        _choose.cache_clear()  # the next scan is refused as well
        raise verdict.refuse(found)
    logger.warning("scan backend %s was asked for by name, though its self-test %s", requested, found.summary)
    return found.summary


def load_backend(requested: str, device: str) -> Backend:
    """The module that computes on a device, and no other: Triton takes a second to import."""
    return importlib.import_module(f"geomano_hpc.kernels.{choose_backend(requested, device)}.scan")
