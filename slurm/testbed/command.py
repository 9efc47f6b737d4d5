"""geomano-slurm-testbed up | down | status"""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from geomano_hpc.errors import GeomanoError
from geomano_hpc.slurm.testbed.cluster import Testbed, default_folder

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A real Slurm with two nodes on this one machine, for development and tests. Needs root and Debian packages.",
)

Folder = Annotated[
    Path | None, typer.Option(help="Where its state goes [$GEOMANO_SLURM_TESTBED or /tmp/geomano-slurm-UID].")
]


@app.command()
def up(folder: Folder = None) -> None:
    """Bring it up: munge, MariaDB, slurmdbd, slurmctld and two nodes, on free ports of loopback.

    \b
    Example:
      geomano-slurm-testbed up
      export SLURM_CONF=/tmp/geomano-slurm-0/slurm.conf
      geomano launch demo_tiny --cluster slurm --profile cpu --cpus 1
      geomano-slurm-testbed down
    """
    testbed = Testbed((folder or default_folder()).resolve())
    started = time.monotonic()
    if testbed.up():
        typer.echo(
            f"up after {time.monotonic() - started:.0f} s: partitions main and low, nodes node1 and node2", err=True
        )
    else:
        typer.echo("is up already", err=True)
    for name, value in testbed.environment.items():
        typer.echo(f"export {name}={value}")


@app.command()
def down(folder: Folder = None) -> None:
    """Cancel its jobs, end its daemons and remove its folder."""
    testbed = Testbed((folder or default_folder()).resolve())
    typer.echo("is down" if testbed.down() else "was not up", err=True)


@app.command()
def status(folder: Folder = None) -> None:
    """Show its daemons and nodes. Exit code 1 if it is not up."""
    testbed = Testbed((folder or default_folder()).resolve())
    for name in testbed.daemons.names():
        typer.echo(f"{name:14} {'running' if testbed.daemons.is_running(name) else 'dead'}")
    if not testbed.is_up():
        raise GeomanoError(f"the testbed in {testbed.folder} is not up; bring it up with geomano-slurm-testbed up")
    for name, state in testbed.node_states().items():
        typer.echo(f"{name:14} {state}")
    for name, value in testbed.environment.items():
        typer.echo(f"export {name}={value}")


def main() -> None:
    try:
        app()
    except GeomanoError as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        sys.exit(error.exit_code)
