"""The self-test of `geomano doctor`: a compiler for Triton's launcher, the GPU of every rank, the kernels."""

import importlib.util
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from geomano_hpc.errors import GeomanoError

Check = tuple[str, Callable[[], list[str]], bool]


class SelfTestError(GeomanoError):
    """A check ran, and its answer is no."""


@dataclass
class SelfTest:
    """Runs on the GPUs that torch sees, or with the CPU in their place. `say` gets a line for every case."""

    say: Callable[[str], None]
    content: dict[str, Any] | None = None  # what was found, for --json
    failed: str = ""  # what failed and what to send

    def checks(self) -> list[Check]:
        if importlib.util.find_spec("triton") is None:  # training takes another backend
            return [("ranks", self._ranks, True)]
        return [("launcher", self._launcher, True), ("ranks", self._ranks, True), ("self-test", self._kernels, True)]

    def _launcher(self) -> list[str]:
        from geomano_hpc.kernels.selftest.compiler import check_compiler

        return [check_compiler()]

    def _ranks(self) -> list[str]:
        """Which GPU this process computes on, as a training would choose it."""
        import torch

        from geomano_hpc.launchers import gpus_granted, read_ranks

        ranks, seen = read_ranks(os.environ), torch.cuda.device_count()
        who = f"rank {ranks.rank} of {ranks.world_size} ({ranks.launcher})" if ranks.launcher else "one process"
        granted = gpus_granted(os.environ)
        if granted and granted[1] > seen and not ranks.launcher:
            raise SelfTestError(f"torch sees {seen} GPUs, but {granted[0]}={granted[1]}: check CUDA_VISIBLE_DEVICES")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        shown = "" if visible is None else f", CUDA_VISIBLE_DEVICES={visible}"
        if ranks.local_rank >= seen > 1:
            raise SelfTestError(
                f"{who} is number {ranks.local_rank} of its node, which has {seen} GPUs for torch{shown}: "
                "start as many ranks as GPUs"
            )
        return [f"{who} computes on {_device(ranks.local_rank, seen)}; torch sees {seen} GPUs{shown}"]

    def _kernels(self) -> list[str]:
        import torch

        from geomano_hpc.kernels.selftest.verdict import identify, keep_verdict
        from geomano_hpc.launchers import read_ranks
        from geomano_hpc.training.records.environment import package_versions

        local_rank, gpus = read_ranks(os.environ).local_rank, torch.cuda.device_count()
        device = torch.device(_device(local_rank, gpus))
        backend, jobs = _jobs(str(device), gpus, local_rank)
        began = time.monotonic()
        found = zip(jobs, self._run(jobs, backend), strict=True)
        results = [replace(one, name=f"{job.device} {one.name}") for job, results in found for one in results]
        if jobs[0].form == "tiny" and device.type == "cuda":  # the first rank of the node keeps the verdict
            failures = [f"{result.name}: {result.reason}" for result in results if not result.passed]
            if failures:
                raise SelfTestError(failures[0])
            return [f"{device}: tiny scans are right; rank 0 of the node tests the rest"]
        more = {"backend": backend, "packages": package_versions(), "devices": [job.device for job in jobs]}
        verdict = keep_verdict(identify(device), jobs[0].form, results, time.monotonic() - began, **more)
        self.content = {
            "passed": verdict.passed,
            "summary": verdict.summary,
            "report": str(verdict.file),
            "identity": verdict.content["identity"],
            "cases": verdict.content["cases"],
        }
        if not verdict.passed:
            advice = f"go on with --set model.scan_backend=torch, and send us {verdict.file}"
            self.failed = f"self-test {verdict.summary}; {advice}"
            raise SelfTestError(verdict.summary)
        seconds = verdict.content["seconds"]
        return [f"{len(results)} cases on {', '.join(job.device for job in jobs)} in {seconds} s: {verdict.file}"]

    def _run(self, jobs: Any, backend: str) -> Any:
        from geomano_hpc.kernels.selftest.apart import run_apart

        def ended(job: Any, result: Any) -> None:
            mark = "ok    " if result.passed else "FAILED"
            why = "" if result.passed or result.error is None else f": {result.reason}"
            self.say(f"  {mark} {job.device} {result.line}{why}")

        return run_apart(jobs, backend, ended)


def _device(local_rank: int, gpus: int) -> str:
    """As a training chooses it, but without taking hold of it: the self-test's own process does that."""
    return f"cuda:{local_rank % gpus}" if gpus else "cpu"


def _jobs(device: str, gpus: int, local_rank: int) -> tuple[str, list[Any]]:
    """The backend and what it computes: everything on this rank's GPU, a little on the others of the machine. Other
    ranks of a node look at their own GPU only. Without a GPU the CPU takes its place, with less to do."""
    from geomano_hpc.kernels import choose_backend
    from geomano_hpc.kernels.selftest.apart import Job

    if gpus == 0:
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        backend = "triton" if interpreted else choose_backend("auto", "cpu")
        return backend, [Job(device, "tiny", 1) if interpreted else Job(device, "quick", 3)]
    if local_rank > 0:
        return "triton", [Job(device, "tiny", 2)]
    others = [f"cuda:{index}" for index in range(gpus) if f"cuda:{index}" != device]
    return "triton", [Job(device, "full"), *(Job(other, "tiny", 2) for other in others)]
