"""geomano status | retry | cancel | logs: the runs of a study after its launch"""

import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geomano_hpc.cli.output import Json, note, print_json
from geomano_hpc.cli.study import RUNS, Folder, Runs, find_study, tell_outcome
from geomano_hpc.errors import ConfigError, GeomanoError

if TYPE_CHECKING:
    from geomano_hpc.launch.status import RunStatus

Named = Annotated[list[str] | None, typer.Argument(help="Runs of the study, by name or by how it begins.")]


def status(
    study: Folder,
    runs: Runs = RUNS,
    state: Annotated[
        str | None, typer.Option(help="Only runs in this state: running, queued, pending, failed, ...")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep the table up to date until all have ended.")
    ] = False,
    every: Annotated[float, typer.Option(min=0.1, help="With --watch: seconds between looks.")] = 2.0,
    json_: Json = False,
) -> None:
    """Show how far each run of a study is: epoch, time left, loss; and of a failed one why, and where its log is.

    With --watch, --json prints an object on a line of its own for each look.

    \b
    Examples:
      geomano status demo
      geomano status demo --watch
      geomano status darcy_ablation --state failed
      geomano status demo --json
    """
    from rich.console import Console

    from geomano_hpc.launch.status import study_status
    from geomano_hpc.training.records.run_state import STATES

    if state is not None and state not in STATES:
        raise ConfigError(f"--state {state!r} is not known; choose one of {', '.join(STATES)}")
    folder = find_study(study, runs)
    if json_:
        with _until_ctrl_c(watch):
            _print_objects(folder, state, every if watch else None)
        return

    def shown(limit: int | None = None) -> Any:
        found = study_status(folder)
        return _table(folder, found, [run for run in found if state in (None, run.state)], limit), found

    console = Console()
    if not watch:
        console.print(shown()[0])
        return
    from rich.live import Live

    with _until_ctrl_c(), Live(console=console, auto_refresh=False) as live:
        while True:
            table, found = shown(max(3, console.height - 8) if console.is_terminal else None)
            live.update(table, refresh=True)
            if not _goes_on(found):
                return
            time.sleep(every)


def _until_ctrl_c(watch: bool = True) -> contextlib.AbstractContextManager[None]:
    """Ctrl-C is the way to end what would go on."""
    return contextlib.suppress(KeyboardInterrupt) if watch else contextlib.nullcontext()


def _goes_on(runs: "list[RunStatus]") -> bool:
    from geomano_hpc.training.records.run_state import ACTIVE

    return any(run.state in ACTIVE for run in runs)


def _print_objects(folder: Path, state: str | None, every: float | None) -> None:
    """The status as JSON: once, or every so many seconds until all have ended."""
    from geomano_hpc.launch.status import study_status
    from geomano_hpc.training.records.run_state import STATES

    while True:
        found = study_status(folder)
        counts = Counter(run.state for run in found)
        rows = [
            {
                "name": run.name,
                "state": run.state,
                "epoch": run.epoch,
                "epochs": run.epochs,
                "seconds_left": run.seconds_left,
                "train_loss": run.train_loss,
                "test_rel_l2": run.test_rel_l2,
                "validation_rel_l2": run.validation_rel_l2,
                "note": run.note,
                "log": run.log,
            }
            for run in found
            if state in (None, run.state)
        ]
        content = {"study": folder, "counts": {word: counts[word] for word in STATES}, "runs": rows}
        print_json(content, one_line=every is not None)
        if every is None or not _goes_on(found):
            return
        time.sleep(every)


def _table(folder: Path, everything: "list[RunStatus]", chosen: "list[RunStatus]", limit: int | None) -> Any:
    from rich.markup import escape
    from rich.table import Table

    from geomano_hpc.training.records.run_state import STATES

    counts = Counter(run.state for run in everything)
    summary = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    if limit is not None and len(chosen) > limit:  # what moves and what broke first
        order = sorted(chosen, key=lambda run: ("running", "failed", "queued", *STATES).index(run.state))
        summary += f"; {len(chosen) - limit} more not shown"
        chosen = order[:limit]
    table = Table(title=escape(f"{folder}: {summary or 'no runs'}"), title_justify="left")
    table.add_column("run", overflow="fold")
    for column in ("state", "epoch", "left", "loss", "rel-L2"):
        table.add_column(column, no_wrap=True)
    table.add_column("note", overflow="fold")
    colours = {"done": "green", "failed": "red", "running": "cyan", "cancelled": "yellow", "stopped": "yellow"}
    for run in chosen:
        note = f"{run.note} ({run.log})" if run.state == "failed" else run.note
        words = [
            f"{run.epoch}/{run.epochs}",
            "" if run.seconds_left is None else duration(run.seconds_left),
            "" if run.train_loss is None else f"{run.train_loss:.4g}",
            _error(run),
        ]
        colour = colours.get(run.state)
        table.add_row(escape(run.name), f"[{colour}]{run.state}[/]" if colour else run.state, *words, escape(note))
    return table


def _error(run: "RunStatus") -> str:
    """The newest, with its split where that is not the test split."""
    if run.error is None:
        return ""
    number, split = run.error
    return f"{number:.5f}" + (f" ({split})" if split != "test" else "")


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes < 48 * 60 else f"{minutes / 1440:.1f} days"


def retry(
    study: Folder,
    named: Named = None,
    runs: Runs = RUNS,
    at_once: Annotated[int | None, typer.Option(min=1, help="Runs at the same time [as launched].")] = None,
) -> None:
    """Start runs again that failed, stopped or were cancelled, where and how the study was launched last.

    A run goes on from its newest checkpoint. Finished runs are left alone.

    \b
    Examples:
      geomano retry darcy_ablation
      geomano retry darcy_ablation kind-2d_positional_encoding-False_correction-0011_seed-3
    """
    from geomano_hpc.launch.retry import retry as start_again
    from geomano_hpc.launch.retry import runs_to_retry

    folder = find_study(study, runs)
    chosen = runs_to_retry(folder, match_runs(folder, named) if named else [])
    if not chosen:
        typer.echo("nothing to retry: no run failed, stopped or was cancelled")
        return
    cluster, outcome = start_again(folder, chosen, at_once)
    tell_outcome(outcome, len(chosen), folder, cluster)


def cancel(study: Folder, named: Named = None, runs: Runs = RUNS) -> None:
    """Stop runs of a study that are queued or training, on this machine or on Slurm; all of them if none is named.

    Their checkpoints stay: `geomano launch` or `geomano retry` go on with them.

    \b
    Examples:
      geomano cancel darcy_ablation
      geomano cancel depth depth-8_seed-0
    """
    from geomano_hpc.launch.cancel import cancel as stop
    from geomano_hpc.launch.manifest import runs_of_study

    folder = find_study(study, runs)
    names = match_runs(folder, named) if named else [run.path.name for run in runs_of_study(folder)]
    done = stop(folder, names)
    typer.echo(f"cancelled {len(done.stopped)} of {len(names)} runs; {len(done.idle)} were not queued or training")
    if done.out_of_reach:
        raise GeomanoError("; ".join(f"{run} goes on: {why}" for run, why in done.out_of_reach.items()))


def logs(
    run: Annotated[str, typer.Argument(help="A run: its folder, STUDY/RUN, or how its name begins.")],
    runs: Runs = RUNS,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows, until the run ends.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Lines from the end.")] = 40,
) -> None:
    """Print the end of a run's log: its own, or what its job printed where it died before it had one.

    \b
    Examples:
      geomano logs demo/seed-0
      geomano logs demo/seed-0 -f
    """
    from geomano_hpc.launch.logs import follow as follow_file
    from geomano_hpc.launch.logs import last_lines, log_files, size_of
    from geomano_hpc.launch.status import run_status
    from geomano_hpc.training.records.run_folder import RunFolder
    from geomano_hpc.training.records.run_state import ACTIVE

    folder = RunFolder(find_run(run, runs))
    own = folder.log_file
    said = size_of(own)  # what is added from now on is followed, so that no line gets lost between the two
    files = log_files(folder)
    if not files and not follow:
        raise GeomanoError(f"{folder.path}: no log yet; the run is {run_status(folder).state}")
    if files:
        note(f"{files[0]}:")
        typer.echo("\n".join(last_lines(files[0], lines, end=said if follow and files[0] == own else None)))
    if follow:
        over = lambda: run_status(folder).state not in ACTIVE  # noqa: E731
        with _until_ctrl_c():
            for text in follow_file(own, said, over):
                typer.echo(text, nl=False)


def match_runs(study: Path, named: list[str]) -> list[str]:
    """Full names of runs that are named by how they begin. A beginning may stand for several, such as all seeds."""
    from geomano_hpc.launch.manifest import runs_of_study

    names = [run.path.name for run in runs_of_study(study)]
    found: dict[str, None] = {}
    for word in named:
        matches = [name for name in names if name == word] or [name for name in names if name.startswith(word)]
        if not matches:
            raise ConfigError(f"{study}: no run begins with {word!r}; see geomano status {study.name}")
        found |= dict.fromkeys(matches)
    return list(found)


def find_run(name: str, runs: Path) -> Path:
    from geomano_hpc.training.records.run_folder import RunFolder

    for folder in (Path(name), runs / name):
        if RunFolder(folder).is_run:
            return folder
    study, _, beginning = name.rstrip("/").rpartition("/")
    found = sorted(folder for folder in runs.glob(f"{study or '*'}/*") if RunFolder(folder).is_run)
    matches = [run for run in found if run.name.startswith(beginning)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        shown = ", ".join(str(run.relative_to(runs)) for run in matches[:5])
        raise ConfigError(f"{name!r} is the beginning of {len(matches)} runs: {shown}; say which")
    raise ConfigError(f"no run {name!r} under {runs}; see geomano status STUDY")
