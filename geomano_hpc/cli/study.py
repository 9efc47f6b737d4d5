"""geomano launch | status | report | monitor"""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geomano_hpc.errors import ConfigError, GeomanoError

if TYPE_CHECKING:
    from geomano_hpc.launch import PlannedRun
    from geomano_hpc.launch.run import Outcome
    from geomano_hpc.slurm import Resources

Folder = Annotated[str, typer.Argument(help="A study: its name under runs/, or its folder.")]
Runs = Annotated[Path, typer.Option(help="Where run folders are.")]
RUNS = Path("runs")


def _study_completions() -> list[str]:
    from geomano_hpc.config import recipe_names
    from geomano_hpc.launch import study_names

    return [*study_names(), *recipe_names()]


def find_study(name: str, runs: Path) -> Path:
    for candidate in (runs / name, Path(name)):
        if candidate.is_dir():
            return candidate
    found = ", ".join(sorted(entry.name for entry in runs.iterdir() if entry.is_dir())) if runs.is_dir() else ""
    raise ConfigError(f"no study {name!r} under {runs}; there {'are: ' + found if found else 'are none yet'}")


def launch(
    study: Annotated[
        str, typer.Argument(help="A shipped study, a study file, or a recipe.", autocompletion=_study_completions)
    ],
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Use the seeds 0 to N-1 [those of the study; 5 for a recipe].")
    ] = None,
    grid: Annotated[
        list[str] | None, typer.Option(help="Vary a key, such as model.depth=2,4,8; may be repeated.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change one key for all runs.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the study's folder [the study's own].")] = None,
    runs: Runs = RUNS,
    cluster: Annotated[str, typer.Option(help="local (this machine) or slurm")] = "local",
    at_once: Annotated[int | None, typer.Option(min=1, help="Runs at the same time [local 2, slurm 16].")] = None,
    partition: Annotated[str | None, typer.Option(help="Slurm partition.")] = None,
    account: Annotated[str | None, typer.Option(help="Slurm account.")] = None,
    gpus: Annotated[int, typer.Option(min=0, max=1, help="GPUs per run on Slurm; 0 trains on the CPU.")] = 1,
    cpus: Annotated[int, typer.Option(min=1, help="Cores per run on Slurm.")] = 8,
    memory_gb: Annotated[int | None, typer.Option(min=1, help="Memory per run on Slurm [the partition's].")] = None,
    minutes: Annotated[int, typer.Option(min=1, help="Time limit per run on Slurm.")] = 24 * 60,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs and the submission file, start nothing.")
    ] = False,
) -> None:
    """Start a study: every seed and every point of its grid that is not finished yet.

    \b
    Examples:
      geomano launch darcy_smoke --seeds 5
      geomano launch darcy --grid model.depth=2,4,8 --name depth
      geomano launch darcy_main --cluster slurm --partition gpu --dry-run
    """
    from geomano_hpc.launch import load_study, plan, with_overrides
    from geomano_hpc.slurm import CLUSTERS, Resources

    if cluster not in CLUSTERS:
        raise ConfigError(f"--cluster {cluster!r} is not known; choose one of {', '.join(CLUSTERS)}")
    chosen = with_overrides(load_study(study), set_ or [], grid or [], seeds, name)
    planned = plan(chosen)
    folder = runs / chosen.name
    resources = Resources(partition, account, gpus, cpus, memory_gb, minutes, at_once or 16)
    if dry_run:
        _describe(planned, folder, cluster, chosen.name, resources)
    elif cluster == "slurm":
        from geomano_hpc.launch.run import submit_to_slurm

        outcome = submit_to_slurm(chosen, planned, folder, resources)
        typer.echo(f"submitted {len(outcome.started)} of {len(planned)} runs{_known_before(outcome)}: {folder}")
        typer.echo(f"see them with: geomano status {chosen.name} --runs {runs}")
    else:
        from geomano_hpc.launch.run import run_here

        outcome = run_here(chosen, planned, folder, at_once or 2)
        done = len(outcome.started) - len(outcome.failed)
        typer.echo(f"finished {done} of {len(planned)} runs{_known_before(outcome)}: {folder}")
        if outcome.failed:
            raise GeomanoError("; ".join(f"{run} failed: {error}" for run, error in outcome.failed.items()))


def _known_before(outcome: "Outcome") -> str:
    words = [f"{outcome.finished_before} were finished before"] if outcome.finished_before else []
    words += [f"{len(outcome.active_before)} are running or queued already"] if outcome.active_before else []
    return f" ({', '.join(words)})" if words else ""


def _describe(planned: "list[PlannedRun]", folder: Path, cluster: str, name: str, resources: "Resources") -> None:
    from geomano_hpc.slurm import sbatch_text
    from geomano_hpc.training.run_folder import RunFolder

    for run in planned:
        state = "finished" if RunFolder(folder / run.name).is_finished else "to run"
        typer.echo(f"{state:9} {folder / run.name}")
    if cluster == "slurm":
        typer.echo("")
        typer.echo(sbatch_text(folder / "jobs", name, resources, len(planned)), nl=False)


def status(study: Folder, runs: Runs = RUNS) -> None:
    """Show how far each run of a study is.

    \b
    Example:
      geomano status demo
    """
    from rich.console import Console
    from rich.table import Table

    from geomano_hpc.launch.status import study_status

    folder = find_study(study, runs)
    table = Table("run", "state", "epoch", "loss", "test rel-L2", "note", title=str(folder))
    for run in study_status(folder):
        loss = "" if run.train_loss is None else f"{run.train_loss:.5f}"
        error = "" if run.test_rel_l2 is None else f"{run.test_rel_l2:.5f}"
        note = f"{run.note} ({run.log})" if run.state == "failed" else run.note
        table.add_row(run.name, run.state, f"{run.epoch}/{run.epochs}", loss, error, note)
    Console().print(table)


def report(
    study: Folder,
    runs: Runs = RUNS,
    format_: Annotated[str, typer.Option("--format", help="terminal or markdown")] = "terminal",
    figures: Annotated[bool, typer.Option(help="Draw loss curves and predictions too.")] = True,
) -> None:
    """Print the table of a study (mean and standard deviation over seeds) and write it with figures to its folder.

    \b
    Example:
      geomano report demo
    """
    from geomano_hpc.report.study_report import write_report

    if format_ not in ("terminal", "markdown"):
        raise ConfigError(f"--format {format_!r} is not known; choose terminal or markdown")
    done = write_report(find_study(study, runs), figures)
    if format_ == "markdown":
        typer.echo(done.table.to_markdown(), nl=False)
    else:
        from geomano_hpc.cli.tables import print_report

        print_report(done.table)
    for file in done.files:
        typer.echo(f"wrote {file}", err=True)


def monitor(
    study: Folder,
    runs: Runs = RUNS,
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 6006,
    host: Annotated[
        str, typer.Option(help="Address to listen on; other machines reach it only if you change this.")
    ] = "127.0.0.1",
) -> None:
    """Show a study in TensorBoard, on this machine only unless told otherwise. Ctrl-C ends it.

    \b
    Example:
      geomano monitor demo --port 6007
    """
    folder = find_study(study, runs)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", host, "--port", str(port)]
    try:
        code = subprocess.run(command, check=False).returncode
    except KeyboardInterrupt:  # the way to end it
        return
    if code:
        raise GeomanoError(f"TensorBoard ended with exit code {code}; is port {port} in use? Try --port 0")
