"""The verdict of the self-test: kept in the cache by GPU, driver, versions and kernels, and asked for by training.

A verdict is one file that is also the report to send: what was tested on what, with every case. Another driver, torch,
Triton or kernel has another key, so its verdict is yet to be found.
"""

import contextlib
import hashlib
import json
import logging
import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from geomano_hpc.atomic import write_json
from geomano_hpc.errors import BackendError
from geomano_hpc.kernels.cache import cache_folder
from geomano_hpc.kernels.selftest.cases import Case, quick_cases
from geomano_hpc.kernels.selftest.compiler import check_compiler
from geomano_hpc.kernels.selftest.run import CaseResult, check_device, run_cases
from geomano_hpc.locks import one_at_a_time

logger = logging.getLogger(__name__)

SKIP = "GEOMANO_SELF_TEST"  # 0: training asks for no verdict
_KERNELS = Path(__file__).parents[1]
_DRIVERS = ("/proc/driver/nvidia/version", "/sys/module/nvidia/version", "/sys/module/amdgpu/version")


@dataclass(frozen=True)
class Identity:
    """What a verdict holds for."""

    gpu: str
    capability: str  # compute capability, or gfx942 and such
    driver: str
    torch: str
    triton: str
    kernels: str  # hash of their sources

    @property
    def file(self) -> Path:
        key = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]
        gpu = re.sub(r"[^A-Za-z0-9]+", "-", self.gpu).strip("-")
        return cache_folder() / "self-test" / f"{gpu}-{key}.json"


@dataclass(frozen=True)
class Verdict:
    passed: bool
    form: str  # full (geomano doctor) or quick (the start of a training)
    failures: list[str]  # a line for each case that failed
    file: Path  # the report; may be missing where the cache cannot be written
    content: Mapping[str, Any]

    @property
    def summary(self) -> str:
        """What failed, in one line."""
        if self.passed:
            return f"passed ({self.form}, {len(self.content['cases'])} cases)"
        more = f" (and {len(self.failures) - 1} more)" if len(self.failures) > 1 else ""
        return f"failed: {self.failures[0]}{more}"


def identify(device: torch.device) -> Identity:
    """The GPU and what its kernels depend on. A CPU, too, for tests with the CPU in the GPU's place."""
    import triton

    gpu, capability = f"CPU {platform.machine()}", ""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        gpu = properties.name
        architecture = getattr(properties, "gcnArchName", "") if torch.version.hip else ""
        capability = architecture or f"{properties.major}.{properties.minor}"
    return Identity(gpu, capability, _driver(), torch.__version__, triton.__version__, _sources())


def current_device() -> torch.device | None:
    """The GPU of this process, if it has one."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None


@lru_cache
def _driver() -> str:
    """The version of the kernel module, or the CUDA version that the driver knows."""
    for path in map(Path, _DRIVERS):
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            continue
        found = re.search(r"\d+\.[\d.]+", text)
        return found.group() if found else text.split("\n")[0].strip()
    known = getattr(torch._C, "_cuda_getDriverVersion", None)
    return str(known()) if known and torch.cuda.is_available() else "unknown"


@lru_cache
def _sources() -> str:
    """Of the kernels and their entries, and of the cases: a new case asks again."""
    files = [*_KERNELS.glob("*.py"), *(_KERNELS / "triton").rglob("*.py"), Path(__file__).with_name("cases.py")]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in sorted(files))).hexdigest()[:16]


def kept_verdict(identity: Identity) -> Verdict | None:
    """What was found before. A file that cannot be read is as if it were not there, which is noted."""
    try:
        content = json.loads(identity.file.read_text(encoding="utf-8"))
        if content["identity"] != asdict(identity):
            raise ValueError("it is for something else")
        return _verdict(content, identity.file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s: not a verdict of the self-test (%s); the test runs again", identity.file, error)
        return None


def _verdict(content: Mapping[str, Any], file: Path) -> Verdict:
    passed, form, failures = content["passed"], content["form"], content["failures"]
    if not isinstance(passed, bool) or not isinstance(content["cases"], list):
        raise TypeError("its parts are not what they should be")
    if passed == bool(failures):
        raise ValueError("it passed and failed")
    return Verdict(passed, form, [str(line) for line in failures], file, content)


def keep_verdict(identity: Identity, form: str, results: Sequence[CaseResult], seconds: float, **more: Any) -> Verdict:
    """Written whole or not at all. Where the cache cannot be written the verdict holds for this process."""
    failures = [f"{result.name}: {result.reason}" for result in results if not result.passed]
    content = {
        "identity": asdict(identity),
        "passed": not failures,
        "form": form,
        "failures": failures,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "python": platform.python_version(),
        "seconds": round(seconds, 1),
        "cases": [result.to_json() for result in results],
        **more,
    }
    try:
        write_json(identity.file, content)
    except OSError as error:
        logger.warning("the verdict of the self-test cannot be kept in %s: %s", identity.file.parent, error)
    return _verdict(content, identity.file)


def asked_verdict(
    device: torch.device,
    backend: str = "triton",
    cases: Callable[[], Sequence[Case]] = quick_cases,
    repeats: int = 3,
) -> Verdict | None:
    """The verdict on a device: kept, or found now by the short form of the self-test. Of several processes that ask at
    once the first one tests, and the others wait for it. None where GEOMANO_SELF_TEST=0 skips it."""
    identity = identify(device)
    if is_skipped():
        logger.warning("%s=0: the Triton kernels are used without a self-test on %s", SKIP, identity.gpu)
        return None
    kept = kept_verdict(identity)
    if kept is not None:
        logger.info("self-test of the scan kernels on %s: %s, known from %s", identity.gpu, kept.summary, kept.file)
        return kept
    try:
        with one_at_a_time(identity.file.with_suffix(".lock")):
            return kept_verdict(identity) or _test_now(identity, device, backend, cases(), repeats)
    except OSError as error:  # no lock there: every process for itself
        logger.warning("the verdict of the self-test cannot be shared in %s: %s", identity.file.parent, error)
        return _test_now(identity, device, backend, cases(), repeats)


def _test_now(identity: Identity, device: torch.device, backend: str, cases: Sequence[Case], repeats: int) -> Verdict:
    logger.info("short self-test of the scan kernels on %s, once (%s=0 skips it)", identity.gpu, SKIP)
    begin = time.monotonic()
    check_device(device)
    if device.type == "cuda":
        check_compiler()  # without which nothing starts: no verdict on the kernels
    results = run_cases(cases, device, backend, repeats)
    verdict = keep_verdict(identity, "quick", results, time.monotonic() - begin)
    if device.type == "cuda":  # the training that follows shall find the GPU as it was
        with contextlib.suppress(RuntimeError):  # which a lost one answers to everything
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
    logger.info("self-test of the scan kernels: %s; report: %s", verdict.summary, verdict.file)
    return verdict


def is_skipped() -> bool:
    return os.environ.get(SKIP, "").strip().lower() in ("0", "false", "no", "off")


def refuse(verdict: Verdict) -> BackendError:
    gpu = verdict.content["identity"]["gpu"]
    return BackendError(
        f"scan backend auto: the Triton kernels failed their self-test on {gpu}: {verdict.failures[0]}; "
        f"go on with model.scan_backend=torch, and send us {verdict.file} (geomano doctor tests again)"
    )
