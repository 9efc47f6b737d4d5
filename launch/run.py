"""Run a study: keep its plan, start what is not finished, here with a bounded number at once or as a Slurm array."""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from geomano_hpc.atomic import write_json
from geomano_hpc.data import ensure_store
from geomano_hpc.errors import ConfigError
from geomano_hpc.launch.cancel import stop_job
from geomano_hpc.launch.claims import Claim, deciding
from geomano_hpc.launch.display import Display
from geomano_hpc.launch.job import TrainRun, failure_file, last_failure
from geomano_hpc.launch.logs import JOB_FILE, last_error
from geomano_hpc.launch.manifest import keep_in_manifest
from geomano_hpc.launch.status import TO_START, cancelled_file, study_states
from geomano_hpc.launch.study import PlannedRun, Study
from geomano_hpc.slurm import ClusterProfile, SlurmJobs, local_executor, slurm_executor, snapshot_code, submit
from geomano_hpc.slurm.command import GeomanoCommand
from geomano_hpc.training.records.run_folder import RunFolder

logger = logging.getLogger(__name__)

_NO_LIMIT = 365 * 24 * 60  # minutes: on one's own machine nobody counts


@dataclass(frozen=True)
class Outcome:
    finished_before: int
    active_before: list[str]  # running or queued already, so not started again
    started: list[str]
    failed: dict[str, str]  # run -> error
    left: list[str] = field(default_factory=list)  # cancelled meanwhile, or taken by another process
    report_follows: bool = False  # a job on Slurm writes it when all have ended


@dataclass(frozen=True)
class Plan:
    """The runs of a study by what is to be done with them. No other launch starts what `claim` holds."""

    finished: list[RunFolder]
    active: list[RunFolder]
    to_start: list[RunFolder]
    claim: Claim

    def outcome(self, failed: dict[str, str], left: Sequence[str] = ()) -> Outcome:
        names = [[run.path.name for run in runs] for runs in (self.active, self.to_start)]
        return Outcome(len(self.finished), names[0], names[1], failed, list(left))


def keep_plan(study: Study, runs: Sequence[PlannedRun], folder: Path, how: dict[str, Any]) -> Plan:
    """Write the study, and the recipe of each run into its folder; claim what is to be started; make missing data.

    `how` is kept for `geomano retry`: the cluster and its options.
    """
    with deciding(folder):
        keep_in_manifest(study, runs, folder, how)
        for run in runs:
            RunFolder(folder / run.name).write_recipe(run.recipe)
        states = study_states(folder)
        folders = [RunFolder(folder / run.name) for run in runs]
        finished = [run for run in folders if states[run.path.name] == "done"]
        to_start = [run for run in folders if states[run.path.name] in TO_START]
        active = [run for run in folders if states[run.path.name] not in ("done", *TO_START)]
        for run_folder in to_start:
            failure_file(run_folder.path).unlink(missing_ok=True)
            cancelled_file(run_folder.path).unlink(missing_ok=True)
        waiting = {run_folder.path.name for run_folder in to_start}
        claim = Claim(folder, waiting)
    try:
        for data in {run.recipe.data: None for run in runs if run.name in waiting}:
            ensure_store(data)
    except BaseException:
        claim.release()
        raise
    return Plan(finished, active, to_start, claim)


def run_here(study: Study, runs: Sequence[PlannedRun], folder: Path, at_once: int) -> Outcome:
    """Train every run that is to be started on this machine, `at_once` at a time, sharing the cores between them."""
    plan = keep_plan(study, runs, folder, {"cluster": "local", "options": {"at_once": at_once}})
    with plan.claim, Display(study.name, len(plan.to_start)) as display:
        return _LocalRuns(study.name, plan, folder, at_once, display).run()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """What is started here can be cancelled, which is done by SIGINT. A launch that a script put into the background
    ignores that signal, and would pass this on."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class _LocalRuns:
    """Runs that share this machine. One that fails or is cancelled leaves its place to the next."""

    def __init__(self, name: str, plan: Plan, folder: Path, at_once: int, display: Display) -> None:
        self._plan, self._folder, self._display = plan, folder, display
        self._places = [share_of_machine(place, at_once) for place in range(at_once)]
        self._executor = local_executor(folder / "jobs", name, _NO_LIMIT)
        self._waiting = list(plan.to_start)
        self._running: list[tuple[RunFolder, Any, dict[str, str]]] = []
        self._failed: dict[str, str] = {}
        self._left: list[str] = []
        self._told_to_stop: set[str] = set()

    def run(self) -> Outcome:
        try:
            while self._waiting or self._running:
                while self._waiting and self._places:
                    self._start(self._waiting.pop(0))
                time.sleep(0.5)
                for entry in list(self._running):
                    self._look_after(entry)
        finally:  # on Ctrl-C the runs stop, too; the next launch goes on with them
            for _, job, _ in self._running:
                job.cancel(check=False)
        return self._plan.outcome(self._failed, self._left)

    def _start(self, run: RunFolder) -> None:
        if cancelled_file(run.path).is_file():
            self._left.append(run.path.name)
            return
        place = self._places.pop(0)
        jobs = self._folder / "jobs"
        with _stderr_into(jobs / "submitit.log"), _interruptible():
            job = self._executor.submit(TrainRun(str(run.path), str(Path.cwd()), place))
        write_json(run.path / JOB_FILE, {"cluster": "local", "job_id": job.job_id, "folder": str(jobs)})
        self._running.append((run, job, place))

    def _look_after(self, entry: tuple[RunFolder, Any, dict[str, str]]) -> None:
        run, job, place = entry
        ended = job.done()
        if ended:
            self._running.remove(entry)
            self._places.append(place)
            if not run.is_finished:
                self._judge(run)
        elif cancelled_file(run.path).is_file() and job.job_id not in self._told_to_stop:
            self._told_to_stop.add(job.job_id)  # once: a second signal would interrupt its clearing up
            job.cancel(check=False)
        self._display.update(run)

    def _judge(self, run: RunFolder) -> None:
        """Why a run ended without a result."""
        if cancelled_file(run.path).is_file() or run.is_held:  # a process that no launch knows is training in it
            self._left.append(run.path.name)
            return
        error = last_failure(run.path)
        if error is None:  # killed: it could not say so itself
            said, file = last_error(run)
            error = f"the process ended without a result{f', its last words: {said}' if said else ''} ({file})"
            write_json(failure_file(run.path), {"error": error})
        self._failed[run.path.name] = error


def share_of_machine(place: int, places: int) -> dict[str, str]:
    """The share of this machine that a run at one of the places gets: its threads and its GPU."""
    # The cores that this process may use, not those of the machine: two threads on one core wait for each other.
    environment = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // places))}
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = shown.split(",") if shown else [str(index) for index in range(torch.cuda.device_count())]
    if torch.cuda.is_available():  # submitit hides all GPUs from a local job that asks for none
        environment["CUDA_VISIBLE_DEVICES"] = gpus[place % len(gpus)]
    return environment


def submit_to_slurm(
    study: Study, runs: Sequence[PlannedRun], folder: Path, profile: ClusterProfile, report: bool = True
) -> Outcome:
    """Submit every run that is to be started as one task of an array job, and a report for when all have ended."""
    jobs_folder = folder.resolve() / "jobs"
    kind = SlurmJobs.training(study.name, profile)
    executor = slurm_executor(jobs_folder, kind)  # first: without a cluster nothing is planned or copied
    how = {"cluster": "slurm", "options": profile.model_dump(mode="json"), "report": report}
    plan = keep_plan(study, runs, folder, how)
    with plan.claim:  # until Slurm knows the runs
        code = snapshot_code(jobs_folder) if plan.to_start else None
        executor.update_parameters(**replace(kind, code=code).parameters())
        submitted = [run for run in plan.to_start if not cancelled_file(run.path).is_file()]
        jobs = submit(executor, [TrainRun(str(run.path), str(Path.cwd())) for run in submitted]) if submitted else []
        for run, job in zip(submitted, jobs, strict=True):
            entry = {"cluster": "slurm", "job_id": job.job_id, "folder": str(jobs_folder)}
            write_json(run.path / JOB_FILE, entry)
            if cancelled_file(run.path).is_file():  # since: whoever cancelled it relies on us
                stop_job(run, entry)
        last = SlurmJobs(f"{study.name}-report", profile, code)
        follows = bool(jobs) and report and _report_after(jobs, study, folder, last)
    left = [run.path.name for run in plan.to_start if cancelled_file(run.path).is_file()]
    return replace(plan.outcome({}, left), report_follows=follows)


def _report_after(runs: Sequence[Any], study: Study, folder: Path, kind: SlurmJobs) -> bool:
    """The report is a job that waits until the runs have ended, well or not. False if the cluster does not take it."""
    array = sorted({job.job_id.partition("_")[0] for job in runs})
    words = ("report", study.name, "--runs", str(folder.resolve().parent))
    executor = slurm_executor(folder / "jobs", replace(kind, after=tuple(array)))
    try:
        (job,) = submit(executor, [GeomanoCommand(words, str(Path.cwd()))])
    except ConfigError as error:  # such as a partition that takes no job without a GPU
        advice = f"name a cpu_partition in the profile, or make it yourself with `geomano report {study.name}`"
        logger.warning("the runs are submitted, but not their report: %s; %s", error, advice)
        return False
    write_json(folder / "jobs" / "report.json", {"cluster": "slurm", "job_id": job.job_id, "after": array})
    return True


@contextlib.contextmanager
def _stderr_into(file: Path) -> Iterator[None]:
    """Processes started here write to the file: submitit's own would print a traceback into the terminal on Ctrl-C."""
    file.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    terminal = os.dup(2)
    with file.open("a") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
