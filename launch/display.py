"""A local launch as it goes: a bar for each run that is training and one for the study, or a line when something
changes where the output is a file."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from geomano_hpc.launch.status import RunStatus, run_status
from geomano_hpc.progress import is_quiet
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.records.run_state import ENDED


class Display:
    """Bars of runs that ended give way to those of the next, so that a thousand runs fit on a screen."""

    def __init__(self, study: str, runs: int) -> None:
        self._console = Console(stderr=True)
        self._said: dict[str, str] = {}
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[unit]} {task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
            disable=is_quiet() or not self._console.is_terminal,
        )
        self._study = self._bars.add_task(study, total=runs, unit="run", note="")
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> "Display":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def update(self, run: RunFolder) -> None:
        if is_quiet():
            return
        status = run_status(run)
        error = "" if status.error is None else f" {status.error[1]} rel-L2 {status.error[0]:.4f}"
        line = f"{status.name}: {status.state}{error}"
        if self._console.is_terminal:
            self._show(status, error, line)
        elif status.state != self._said.get(status.name, "queued"):
            print(line, flush=True)
        self._said[status.name] = status.state

    def _show(self, status: RunStatus, error: str, line: str) -> None:
        if status.name not in self._tasks:
            self._tasks[status.name] = self._bars.add_task(status.name, total=status.epochs, unit="epoch", note="")
        task = self._tasks[status.name]
        self._bars.update(task, completed=status.epoch, note=f"{status.state}{error}")
        if status.state in ENDED:
            self._bars.remove_task(task)
            self._bars.advance(self._study)
            self._bars.console.print(line, highlight=False)
