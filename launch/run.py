"""Run a study: keep its plan, start what is not finished, here with a bounded number at once or as a Slurm array."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from geomano_hpc.atomic import write_json, write_text
from geomano_hpc.data import ensure_store
from geomano_hpc.launch.job import TrainRun, failure_file, last_failure
from geomano_hpc.launch.status import JOB_FILE, run_status
from geomano_hpc.launch.study import PlannedRun, Study
from geomano_hpc.slurm import Resources, make_executor
from geomano_hpc.training.run_folder import RunFolder

_NO_LIMIT = 365 * 24 * 60  # minutes: on one's own machine nobody counts


@dataclass(frozen=True)
class Outcome:
    finished_before: int
    active_before: list[str]  # running or queued already, so not started again
    started: list[str]
    failed: dict[str, str]  # run -> error


@dataclass(frozen=True)
class Plan:
    """The runs of a study by what is to be done with them."""

    finished: list[RunFolder]
    active: list[RunFolder]
    to_start: list[RunFolder]

    def outcome(self, failed: dict[str, str]) -> Outcome:
        names = [[run.path.name for run in runs] for runs in (self.active, self.to_start)]
        return Outcome(len(self.finished), names[0], names[1], failed)


def keep_plan(study: Study, runs: Sequence[PlannedRun], folder: Path) -> Plan:
    """Write the study, and the recipe of each run into its folder; make missing data; see what is to be started."""
    write_text(folder / "study.yaml", yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False))
    made = Plan([], [], [])
    for run in runs:
        run_folder = RunFolder(folder / run.name)
        run_folder.write_recipe(run.recipe)
        state = run_status(run_folder).state
        kind = {"done": made.finished, "running": made.active, "queued": made.active}.get(state, made.to_start)
        kind.append(run_folder)
    for run_folder in made.to_start:
        failure_file(run_folder.path).unlink(missing_ok=True)
    waiting = {run_folder.path.name for run_folder in made.to_start}
    for data in {run.recipe.data: None for run in runs if run.name in waiting}:
        ensure_store(data)
    return made


def run_here(study: Study, runs: Sequence[PlannedRun], folder: Path, at_once: int) -> Outcome:
    """Train every run that is to be started on this machine, `at_once` at a time, sharing the cores between them."""
    plan = keep_plan(study, runs, folder)
    places = [share_of_machine(place, at_once) for place in range(at_once)]
    executor = make_executor("local", folder / "jobs", study.name, Resources(minutes=_NO_LIMIT))
    waiting = list(plan.to_start)
    running: list[tuple[RunFolder, Any, dict[str, str]]] = []
    failed: dict[str, str] = {}
    with _Display(waiting) as display:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    run, place = waiting.pop(0), places.pop(0)
                    with _stderr_into(folder / "jobs" / "submitit.log"):
                        job = executor.submit(TrainRun(str(run.path), str(Path.cwd()), place))
                    write_json(run.path / JOB_FILE, {"cluster": "local", "job_id": job.job_id})
                    running.append((run, job, place))
                time.sleep(0.5)
                display.update()
                for run, job, place in [entry for entry in running if entry[1].done()]:
                    running.remove((run, job, place))
                    places.append(place)
                    if not run.is_finished:
                        failed[run.path.name] = last_failure(run.path) or f"it ended early; see {job.paths.stderr}"
        finally:  # on Ctrl-C the runs stop, too; the next launch goes on with them
            for _, job, _ in running:
                job.cancel(check=False)
    return plan.outcome(failed)


def share_of_machine(place: int, places: int) -> dict[str, str]:
    """The share of this machine that a run at one of the places gets: its threads and its GPU."""
    # The cores that this process may use, not those of the machine: two threads on one core wait for each other.
    environment = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // places))}
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = shown.split(",") if shown else [str(index) for index in range(torch.cuda.device_count())]
    if torch.cuda.is_available():  # submitit hides all GPUs from a local job that asks for none
        environment["CUDA_VISIBLE_DEVICES"] = gpus[place % len(gpus)]
    return environment


def submit_to_slurm(study: Study, runs: Sequence[PlannedRun], folder: Path, resources: Resources) -> Outcome:
    """Submit every run that is to be started as one task of an array job."""
    executor = make_executor("slurm", folder / "jobs", study.name, resources)
    plan = keep_plan(study, runs, folder)
    if plan.to_start:
        with executor.batch():
            environment = {"OMP_NUM_THREADS": str(resources.cpus)}
            jobs = [executor.submit(TrainRun(str(run.path), str(Path.cwd()), environment)) for run in plan.to_start]
        for run, job in zip(plan.to_start, jobs, strict=True):
            write_json(run.path / JOB_FILE, {"cluster": "slurm", "job_id": job.job_id, "folder": str(folder / "jobs")})
    return plan.outcome({})


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


class _Display:
    """One line per run: a bar each on a terminal, a line when something changes in a log."""

    def __init__(self, runs: Sequence[RunFolder]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=True)
        self._runs = list(runs)
        self._said: dict[str, str] = {}
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("epoch {task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> "_Display":
        self._bars.start()
        for run in self._runs:
            total = run.recipe().training.epochs
            self._tasks[run.path.name] = self._bars.add_task(run.path.name, total=total, note="waiting", start=False)
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def update(self) -> None:
        for run in self._runs:
            status = run_status(run)
            error = "" if status.test_rel_l2 is None else f" rel-L2 {status.test_rel_l2:.4f}"
            note = f"{status.state}{error}"
            task = self._tasks[status.name]
            if status.state != "planned":
                self._bars.start_task(task)
            self._bars.update(task, completed=status.epoch, note=note)
            if status.state in ("done", "failed"):
                self._bars.stop_task(task)
            if not self._console.is_terminal and status.state != self._said.get(status.name, "planned"):
                self._said[status.name] = status.state
                print(f"{status.name}: {note}", flush=True)
