"""Options of commands that may run as a job of a cluster, and handing such a command over."""

from pathlib import Path
from typing import Annotated

import typer

from geomano_hpc.errors import ConfigError


def profile_completions() -> list[str]:
    from geomano_hpc.slurm import profile_names

    return profile_names()


Cluster = Annotated[str, typer.Option(help="local (here and now) or slurm (an MPI job)")]
RankCount = Annotated[int | None, typer.Option(min=1, help="MPI ranks of the Slurm job, a core each [1].")]
NodeCount = Annotated[int | None, typer.Option(min=1, help="Nodes of the Slurm job [1].")]
Profile = Annotated[
    str | None,
    typer.Option(help="Cluster profile: a shipped one, your own or a YAML file.", autocompletion=profile_completions),
]
_OPTIONS = ("cluster", "ranks", "nodes", "profile")


def handed_to_cluster(context: typer.Context, out: Path) -> bool:
    """Submit the command that is being run, without these options, if they ask for it. Its log goes beside `out`."""
    from geomano_hpc.slurm import CLUSTERS, load_profile

    cluster, ranks, nodes, profile = (context.params[name] for name in _OPTIONS)
    if cluster not in CLUSTERS:
        raise ConfigError(f"--cluster {cluster!r} is not known; choose one of {', '.join(CLUSTERS)}")
    if cluster == "local":
        given = [name for name in _OPTIONS[1:] if context.params[name] is not None]
        if given:
            raise ConfigError(f"--{given[0]} goes with --cluster slurm; on this machine, mpirun -n gives the ranks")
        return False
    from geomano_hpc.slurm.command import submit_ranks

    ranks, nodes = ranks or 1, nodes or 1
    job = submit_ranks(_words(context), out.parent / "jobs", load_profile(profile), ranks, nodes)
    typer.echo(f"submitted job {job.job_id}: {ranks} ranks on {nodes} node{'s' * (nodes > 1)}, for {out}")
    typer.echo(f"what it says: {job.log} and {job.errors}")
    return True


def _words(context: typer.Context) -> tuple[str, ...]:
    """The command line as it was given, without the options of this file."""
    words = context.command_path.split()[1:]
    for parameter in context.command.params:
        name = parameter.name
        source = context.get_parameter_source(name) if name and name not in _OPTIONS else None
        if name is None or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        values = value if isinstance(value, list | tuple) else [value]
        if parameter.param_type_name == "argument":
            words += [str(one) for one in values]
        elif isinstance(value, bool):
            words += [parameter.opts[0] if value else parameter.secondary_opts[0]]
        else:
            words += [word for one in values for word in (parameter.opts[0], str(one))]
    return tuple(words)
