"""geomano launch | monitor"""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geomano_hpc.cli.cluster import Profile
from geomano_hpc.errors import ConfigError, GeomanoError

if TYPE_CHECKING:
    from geomano_hpc.launch import PlannedRun
    from geomano_hpc.launch.run import Outcome
    from geomano_hpc.slurm import ClusterProfile

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


def _grid_is_of_points(given: list[str] | None) -> None:
    if given:
        raise ConfigError(f"launch has no --grid, which is the points of a field: write --vary {given[0]}")


def launch(
    study: Annotated[
        str, typer.Argument(help="A shipped study, a study file, or a recipe.", autocompletion=_study_completions)
    ],
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Use the seeds 0 to N-1 [those of the study; 5 for a recipe].")
    ] = None,
    vary: Annotated[
        list[str] | None, typer.Option(help="Vary a key, such as model.depth=2,4,8; may be repeated.")
    ] = None,
    _grid: Annotated[
        list[str] | None, typer.Option("--grid", hidden=True, is_eager=True, callback=_grid_is_of_points)
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change one key for all runs.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the study's folder [the study's own].")] = None,
    runs: Runs = RUNS,
    cluster: Annotated[str, typer.Option(help="local (this machine) or slurm")] = "local",
    at_once: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at the same time [local: one for each GPU, 2 without GPUs; slurm 16]."),
    ] = None,
    profile: Profile = None,
    partition: Annotated[str | None, typer.Option(help="Slurm partition [the profile's].")] = None,
    account: Annotated[str | None, typer.Option(help="Slurm account [the profile's].")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes per run on Slurm [1].")] = None,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="GPUs per node on Slurm, a rank for each; 0 trains on the CPU [1].")
    ] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="Cores per rank on Slurm [8].")] = None,
    memory_gb: Annotated[int | None, typer.Option(min=1, help="Memory per node on Slurm [the partition's].")] = None,
    minutes: Annotated[int | None, typer.Option(min=1, help="Time limit per start on Slurm [a day].")] = None,
    report_after: Annotated[
        bool, typer.Option("--report/--no-report", help="On Slurm, a last job writes the report when all have ended.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs and the submission file, start nothing.")
    ] = False,
) -> None:
    """Start a study: every run of it that is not finished yet. Two launches at once never start a run twice.

    Ctrl-C stops the runs of a local launch, which save their state; the same command goes on with them.

    Shipped studies: darcy_main, darcy_ablation, navier_stokes_main, navier_stokes_ablation, scale_depth, scale_dstate,
    scale_embedding, efficiency, each with a _smoke version for a CPU; demo, demo_tiny. Your own is a YAML file.

    \b
    Examples:
      geomano launch darcy_smoke --seeds 5
      geomano launch darcy --vary model.depth=2,4,8 --name depth
      geomano launch darcy_main --cluster slurm --profile a100 --dry-run
    """
    from geomano_hpc.launch import load_study, plan, with_overrides
    from geomano_hpc.slurm import CLUSTERS, load_profile

    if cluster not in CLUSTERS:
        raise ConfigError(f"--cluster {cluster!r} is not known; choose one of {', '.join(CLUSTERS)}")
    chosen = with_overrides(load_study(study), set_ or [], vary or [], seeds, name)
    planned = plan(chosen)
    folder = runs / chosen.name
    options = {"partition": partition, "account": account, "nodes": nodes, "gpus": gpus, "cpus": cpus}
    options |= {"memory_gb": memory_gb, "time": minutes and str(minutes), "at_once": at_once}
    resources = load_profile(profile, options)
    if dry_run:
        _describe(planned, folder, cluster, chosen.name, resources, at_once)
    elif cluster == "slurm":
        from geomano_hpc.launch.run import submit_to_slurm

        outcome = submit_to_slurm(chosen, planned, folder, resources, report_after)
        tell_outcome(outcome, len(planned), folder, cluster)
    else:
        from geomano_hpc.launch.machine import runs_at_once
        from geomano_hpc.launch.run import run_here

        tell_outcome(run_here(chosen, planned, folder, at_once or runs_at_once()), len(planned), folder, cluster)


def tell_outcome(outcome: "Outcome", planned: int, folder: Path, cluster: str) -> None:
    """What a launch did, and what to do next."""
    from geomano_hpc.launch.manifest import report_folder

    known = [f"{outcome.finished_before} were finished before"] if outcome.finished_before else []
    known += [f"{len(outcome.active_before)} are running or queued already"] if outcome.active_before else []
    known += [f"{len(outcome.left)} were cancelled or taken over meanwhile"] if outcome.left else []
    before = f" ({', '.join(known)})" if known else ""
    if cluster == "slurm":
        typer.echo(f"submitted {len(outcome.started) - len(outcome.left)} of {planned} runs{before}: {folder}")
        typer.echo(f"see them with: geomano status {folder.name} --runs {folder.parent}")
        if outcome.report_follows:
            typer.echo(f"the report will be in {report_folder(folder)} when all have ended")
        return
    done = len(outcome.started) - len(outcome.failed) - len(outcome.left)
    typer.echo(f"finished {done} of {planned} runs{before}: {folder}")
    if outcome.failed:
        shown = [f"{run} failed: {error}" for run, error in list(outcome.failed.items())[:3]]
        more = len(outcome.failed) - len(shown)
        shown += [f"and {more} more: see geomano status {folder.name} --state failed"] if more else []
        raise GeomanoError("; ".join(shown))


def _describe(
    planned: "list[PlannedRun]",
    folder: Path,
    cluster: str,
    name: str,
    profile: "ClusterProfile",
    at_once: int | None,
) -> None:
    from geomano_hpc.launch.machine import runs_at_once, visible_gpus
    from geomano_hpc.launch.manifest import jobs_folder
    from geomano_hpc.report.estimate import estimate
    from geomano_hpc.slurm import SlurmJobs, sbatch_text, snapshot_path
    from geomano_hpc.training.records.run_folder import RunFolder

    to_run = [run for run in planned if not RunFolder(folder / run.name).is_finished]
    waiting = {run.name for run in to_run}
    for run in planned:
        typer.echo(f"{'to run' if run.name in waiting else 'finished':9} {folder / run.name}")
    typer.echo("")
    for line in estimate(to_run, folder, profile if cluster == "slurm" else None):
        typer.echo(line)
    if cluster == "local":
        gpus = len(visible_gpus())
        shared = f"{gpus} GPU{'s' * (gpus > 1)}, one for each run" if gpus else "no GPU: they share the cores"
        typer.echo(f"{at_once or runs_at_once()} at the same time on this machine ({shared})")
    if cluster == "slurm" and to_run:
        typer.echo("")
        jobs = jobs_folder(folder.resolve())
        typer.echo(sbatch_text(jobs, SlurmJobs.training(name, profile, snapshot_path(jobs)), len(to_run)), nl=False)


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
