"""Run a study: keep its plan, start what is not finished, here with a bounded number at once or as a Slurm array."""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from geomano_hpc.atomic import write_json
from geomano_hpc.ctrl_c import children_ignore_ctrl_c
from geomano_hpc.data import ensure_store, require_store
from geomano_hpc.errors import ConfigError, InterruptedRunError
from geomano_hpc.launch.cancel import stop_job, stop_locally
from geomano_hpc.launch.claims import Claim, deciding
from geomano_hpc.launch.display import Display
from geomano_hpc.launch.job import TrainRun
from geomano_hpc.launch.logs import last_error
from geomano_hpc.launch.machine import share_of_machine
from geomano_hpc.launch.manifest import jobs_folder, keep_in_manifest
from geomano_hpc.launch.status import study_states
from geomano_hpc.launch.study import PlannedRun, Study
from geomano_hpc.slurm import ClusterProfile, SlurmJobs, local_executor, slurm_executor, snapshot_code, submit
from geomano_hpc.slurm.command import GeomanoCommand
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.records.run_state import ACTIVE, TO_START

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
    for data in {run.recipe.data: None for run in runs if not RunFolder(folder / run.name).is_finished}:
        require_store(data)  # refused before there is a plan
    with deciding(folder):
        keep_in_manifest(study, runs, folder, how)
        for run in runs:
            RunFolder(folder / run.name).write_recipe(run.recipe)
        states = study_states(folder)
        folders = [RunFolder(folder / run.name) for run in runs]
        finished = [run for run in folders if states[run.path.name] == "done"]
        to_start = [run for run in folders if states[run.path.name] in TO_START]
        active = [run for run in folders if states[run.path.name] in ACTIVE]
        for run_folder in to_start:
            run_folder.clear_marks()
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


class _LocalRuns:
    """Runs that share this machine. One that fails or is cancelled leaves its place to the next."""

    def __init__(self, name: str, plan: Plan, folder: Path, at_once: int, display: Display) -> None:
        self._plan, self._folder, self._display = plan, folder, display
        self._places = [share_of_machine(place, at_once) for place in range(at_once)]
        self._executor = local_executor(jobs_folder(folder), name, _NO_LIMIT)
        self._waiting = list(plan.to_start)
        self._running: list[tuple[RunFolder, Any, dict[str, str]]] = []
        self._failed: dict[str, str] = {}
        self._left: list[str] = []

    def run(self) -> Outcome:
        try:
            while self._waiting or self._running:
                while self._waiting and self._places:
                    self._start(self._waiting.pop(0))
                time.sleep(0.5)
                for entry in list(self._running):
                    self._look_after(entry)
        except KeyboardInterrupt:
            self._stop_all()
            done = sum(run.is_finished for run in self._plan.to_start)
            raise InterruptedRunError(
                f"{self._folder}: stopped by Ctrl-C after {done} of {len(self._plan.to_start)} runs; what the others "
                "have done is saved, and the same command goes on with them"
            ) from None
        finally:  # whatever happened, no run goes on without its launch
            self._tell_to_stop()
        return self._plan.outcome(self._failed, self._left)

    def _tell_to_stop(self) -> None:
        for _, job, _ in self._running:
            stop_locally(int(job.job_id))

    def _stop_all(self) -> None:
        """Wait until every run has saved its state. A second Ctrl-C does not wait: the runs end by themselves."""
        print("stopping: the runs save their state at their next step; Ctrl-C again does not wait", file=sys.stderr)
        while self._running:
            self._tell_to_stop()
            time.sleep(0.5)
            self._running = [entry for entry in self._running if not entry[1].done()]

    def _start(self, run: RunFolder) -> None:
        if run.is_cancelled:
            self._left.append(run.path.name)
            return
        place = self._places.pop(0)
        jobs = jobs_folder(self._folder)
        # submitit would kill a run a second after Ctrl-C, in the middle of a step: the launch tells it to stop instead.
        with _stderr_into(jobs / "submitit.log"), children_ignore_ctrl_c():
            job = self._executor.submit(TrainRun(str(run.path), str(Path.cwd()), place))
            self._running.append((run, job, place))  # before Ctrl-C can come: what is running is told to stop
        run.write_job("local", job.job_id, jobs)

    def _look_after(self, entry: tuple[RunFolder, Any, dict[str, str]]) -> None:
        run, job, place = entry
        ended = job.done()
        if ended:
            self._running.remove(entry)
            self._places.append(place)
            if not run.is_finished:
                self._judge(run)
        elif run.is_cancelled:
            stop_locally(int(job.job_id))
        self._display.update(run)

    def _judge(self, run: RunFolder) -> None:
        """Why a run ended without a result."""
        if run.is_cancelled or run.is_held:  # a process that no launch knows is training in it
            self._left.append(run.path.name)
            return
        error = run.failure()
        if error is None:  # killed: it could not say so itself
            said, file = last_error(run)
            error = f"the process ended without a result{f', its last words: {said}' if said else ''} ({file})"
            run.write_failure(error)
        self._failed[run.path.name] = error


def submit_to_slurm(
    study: Study, runs: Sequence[PlannedRun], folder: Path, profile: ClusterProfile, report: bool = True
) -> Outcome:
    """Submit every run that is to be started as one task of an array job, and a report for when all have ended."""
    jobs_path = jobs_folder(folder.resolve())
    kind = SlurmJobs.training(study.name, profile)
    executor = slurm_executor(jobs_path, kind)  # first: without a cluster nothing is planned or copied
    how = {"cluster": "slurm", "options": profile.model_dump(mode="json"), "report": report}
    plan = keep_plan(study, runs, folder, how)
    with plan.claim:  # until Slurm knows the runs
        code = snapshot_code(jobs_path) if plan.to_start else None
        executor.update_parameters(**replace(kind, code=code).parameters())
        submitted = [run for run in plan.to_start if not run.is_cancelled]
        jobs = submit(executor, [TrainRun(str(run.path), str(Path.cwd())) for run in submitted]) if submitted else []
        for run, job in zip(submitted, jobs, strict=True):
            run.write_job("slurm", job.job_id, jobs_path)
            if run.is_cancelled:  # since: whoever cancelled it relies on us
                stop_job(run.job())
        last = SlurmJobs(f"{study.name}-report", profile, code)
        follows = bool(jobs) and report and _report_after(jobs, study, folder, last)
    left = [run.path.name for run in plan.to_start if run.is_cancelled]
    return replace(plan.outcome({}, left), report_follows=follows)


def _report_after(runs: Sequence[Any], study: Study, folder: Path, kind: SlurmJobs) -> bool:
    """The report is a job that waits until the runs have ended, well or not. False if the cluster does not take it."""
    array = sorted({job.job_id.partition("_")[0] for job in runs})
    words = ("report", study.name, "--runs", str(folder.resolve().parent))
    executor = slurm_executor(jobs_folder(folder), replace(kind, after=tuple(array)))
    try:
        (job,) = submit(executor, [GeomanoCommand(words, str(Path.cwd()))])
    except ConfigError as error:  # such as a partition that takes no job without a GPU
        advice = f"name a cpu_partition in the profile, or make it yourself with `geomano report {study.name}`"
        logger.warning("the runs are submitted, but not their report: %s; %s", error, advice)
        return False
    write_json(jobs_folder(folder) / "report.json", {"cluster": "slurm", "job_id": job.job_id, "after": array})
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
