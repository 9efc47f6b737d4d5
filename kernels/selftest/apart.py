"""The self-test in a process of its own: a compiler that crashes or a kernel that never ends is found, too, and has a
name. The child says on stdout what it does, one JSON object a line.

A job is a device, the form of the test and the number of repeats.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, NamedTuple

import torch

from geomano_hpc.errors import BackendError, in_one_line
from geomano_hpc.kernels.selftest.cases import Case, full_cases, large_cases, quick_cases, tiny_cases
from geomano_hpc.kernels.selftest.run import REPEATS, CaseResult, check_device, run_cases

_FORMS: dict[str, Callable[[], list[Case]]] = {"full": full_cases, "quick": quick_cases, "tiny": tiny_cases}
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Job(NamedTuple):
    device: str
    form: str
    repeats: int = REPEATS


def cases_of(form: str, backend: str) -> list[Case]:
    """The C++ kernel has no float16, and large cases are for GPUs."""
    cases = _FORMS[form]()
    if backend != "cpu":
        return cases
    return [case for case in cases if case.dtype != "float16" and case not in large_cases()]


def run_apart(
    jobs: Sequence[Job],
    backend: str,
    ended: Callable[[Job, CaseResult], None] = lambda job, result: None,
    seconds: float = 600,
) -> list[list[CaseResult]]:
    """The results of each job. A device that cannot be used at all is an error, and no result."""
    order = json.dumps([backend, jobs])
    names = [(index, case.name) for index, job in enumerate(jobs) for case in cases_of(job.form, backend)]
    results: list[list[CaseResult]] = [[] for _ in jobs]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
        command = [sys.executable, "-m", __name__, order]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        late = threading.Event()

        def end() -> None:
            late.set()
            child.kill()

        limit = threading.Timer(seconds, end)
        limit.start()
        try:
            refused = _listen(_said(child.stdout), jobs, results, ended)
            child.wait()
        finally:
            limit.cancel()
            if child.poll() is None:  # Ctrl-C
                child.kill()
                child.wait()
        if refused:
            raise BackendError(refused)
        done = sum(map(len, results))
        if done == len(names):
            return results
        why = f"did not end within {seconds:g} s" if late.is_set() else _how_it_ended(child.returncode, stderr)
    if not late.is_set() and -child.returncode in _FROM_OUTSIDE:
        raise BackendError(
            f"the self-test {why}, which says nothing about kernels (too little memory?): start it again"
        )
    if done == 0 and not late.is_set() and child.returncode > 0:
        raise BackendError(f"the self-test did not start: it {why}")
    for number, (index, name) in enumerate(names[done:]):
        reason = f"the process of the self-test {why}" if number == 0 else f"not run: see {names[done][1]}"
        results[index].append(CaseResult(name, False, None, None, "", 0, jobs[index].repeats, 0.0, reason))
        ended(jobs[index], results[index][-1])
    return results


def _said(stdout: IO[str] | None) -> Iterable[Any]:
    """What the child says; libraries may print there, too."""
    for line in stdout or ():
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, list) and said and said[0] in ("ended", "refused"):
                yield said


def _listen(
    said: Iterable[Any],
    jobs: Sequence[Job],
    results: list[list[CaseResult]],
    ended: Callable[[Job, CaseResult], None],
) -> str:
    """Fills in the results. The reason where a device cannot be used."""
    refused = ""
    for what, *content in said:
        if what == "refused":
            (refused,) = content
        else:
            index, result = content
            results[index].append(CaseResult(**result))
            ended(jobs[index], results[index][-1])
    return refused


def _how_it_ended(code: int, stderr: IO[str]) -> str:
    stderr.seek(0)
    lines = [line.strip() for line in stderr.readlines() if line.strip()]
    last = f": {lines[-1][:500]}" if lines else ""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}{last}"
    return f"ended with code {code}{last}"


def _work(order: str) -> None:
    """In the child."""
    backend, jobs = json.loads(order)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print is not mixed in

    def say(*what: Any) -> None:
        print(json.dumps(what), file=out, flush=True)

    for index, job in enumerate(Job(*job) for job in jobs):
        device = torch.device(job.device)
        try:
            check_device(device)
            run_cases(
                cases_of(job.form, backend),
                device,
                backend,
                job.repeats,
                lambda result: say("ended", index, result.to_json()),  # noqa: B023
            )
        except BackendError as error:
            say("refused", in_one_line(error).partition(": ")[2])
            return


if __name__ == "__main__":
    _work(sys.argv[1])
