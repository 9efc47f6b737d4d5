"""geomano data generate | inspect | convert | verify | info"""

from pathlib import Path
from typing import Annotated

import typer

from geomano_hpc.cli.cluster import Cluster, NodeCount, Profile, RankCount, handed_to_cluster
from geomano_hpc.cli.convert import convert
from geomano_hpc.cli.once import Once
from geomano_hpc.cli.output import Json, note, print_json, stdout_for
from geomano_hpc.errors import DataError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make, convert and check data.")

Store = Annotated[Path, typer.Argument(help="A prepared store, such as data/darcy.zarr.")]


@app.command(cls=Once)
def generate(
    context: typer.Context,
    problem: Annotated[str, typer.Argument(help="darcy, navier_stokes or burgers")],
    out: Annotated[Path, typer.Option(help="The raw HDF5 file to write.")],
    samples: Annotated[int, typer.Option(min=1, help="How many samples.")] = 1200,
    grid: Annotated[
        int | None,
        typer.Option(min=8, help="Points per side in the file [421 darcy, 64 navier_stokes, 1024 burgers]."),
    ] = None,
    solve_grid: Annotated[
        int | None,
        typer.Option(min=8, help="Solve on so many, a multiple of --grid [navier_stokes 4 times --grid, else --grid]."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Sample i depends on the seed and i only.")] = 0,
    viscosity: Annotated[float | None, typer.Option(help="[navier_stokes 1e-5, burgers 0.01]")] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes of each rank; 0 takes all cores of a single rank, one of several.")
    ] = 0,
    device: Annotated[
        str | None,
        typer.Option(help="navier_stokes: solve in batches with torch on cpu or cuda [one by one with scipy]."),
    ] = None,
    cluster: Cluster = "local",
    ranks: RankCount = None,
    nodes: NodeCount = None,
    profile: Profile = None,
) -> None:
    """Solve the benchmark's equations for random inputs, after the FNO authors' recipe, and write a raw file.

    Killed and started again, it makes only what is missing. The file is the same for any number of ranks and workers.

    \b
    Examples:
      geomano data generate darcy --samples 1200 --grid 421 --out data/darcy.h5
      mpirun -n 8 geomano data generate navier_stokes --samples 1200 --out data/navier_stokes.h5
      geomano data generate navier_stokes --out data/navier_stokes.h5 --cluster slurm --ranks 16 --profile cpu
      geomano data generate navier_stokes --device cuda --out data/navier_stokes.h5
      geomano data generate burgers --viscosity 0.001 --grid 4096 --out data/burgers.h5
    """
    if handed_to_cluster(context, out):
        return
    from geomano_hpc.data_prep.generate import Generation
    from geomano_hpc.data_prep.generate import generate as make
    from geomano_hpc.data_prep.ranks import abort_all, communicator

    grid = grid or {"navier_stokes": 64, "burgers": 1024}.get(problem, 421)
    solve_grid = solve_grid or (4 * grid if problem == "navier_stokes" else grid)
    world = communicator()
    with abort_all(world):
        transforms = None
        if device is not None:
            from geomano_hpc.data.torch_fft import TorchFft

            transforms = TorchFft(device, world.rank)
            note(f"rank {world.rank}: solving in batches with torch on {transforms.device}")
        library = transforms.name if transforms else "scipy"
        made = make(
            Generation(problem, samples, grid, seed, viscosity, solve_grid, library), out, workers, world, transforms
        )
    if world.rank == 0:
        typer.echo(f"{'wrote' if made else 'already there, reused:'} {out}")


app.command("convert", cls=Once)(convert)


@app.command(cls=Once)
def inspect(
    file: Annotated[Path, typer.Argument(help="A raw file, or a Zarr store of another program.")], json_: Json = False
) -> None:
    """Show what is in a raw file (names, shapes, types, axes, attributes), and the convert command that would fit.

    Nothing but names and coordinates is read, however large the file is.

    \b
    Examples:
      geomano data inspect wake.nc
      geomano data inspect 2D_CFD_Rand_M0.1.hdf5 --json
    """
    from geomano_hpc.data_prep.inspection.inspect import inspect as look

    found = look(file)
    if json_:
        print_json(found.to_json())
        return
    for line in found.lines():
        typer.echo(line)


@app.command(cls=Once)
def verify(store: Store) -> None:
    """Check every checksum, shape and sample of a store; exit code 1 names the bad shard and sample.

    Samples with NaN or Inf, with one value everywhere, or far from all others are bad.

    \b
    Example:
      geomano data verify data/darcy.zarr
    """
    from geomano_hpc.data_prep.verify import verify as check

    problems = check(store)
    for line in problems:
        typer.echo(line)
    if problems:
        raise DataError(f"{store}: {len(problems)} problem{'s' * (len(problems) > 1)}; the first: {problems[0]}")
    typer.echo(f"{store}: good")


@app.command(cls=Once)
def info(
    store: Store,
    picture: Annotated[
        Path | None, typer.Option(help="PNG file for a picture of a few samples [beside the store: NAME.png].")
    ] = None,
    no_picture: Annotated[bool, typer.Option("--no-picture", help="Print the card only.")] = False,
    json_: Json = False,
) -> None:
    """Show what a store holds and where it came from, and draw a few of its samples.

    With --json a picture is drawn only where --picture asks for it.

    \b
    Examples:
      geomano data info data/darcy.zarr
      geomano data info data/darcy.zarr --picture darcy.png
      geomano data info data/darcy.zarr --json
    """
    from geomano_hpc.data_prep.card import describe, facts
    from geomano_hpc.data_prep.sheet import draw

    if json_:
        drawn = None if no_picture else picture
        with stdout_for(json_):
            found = facts(store)
            if drawn:
                draw(store, drawn)
        print_json({**found, "picture": drawn})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in describe(store).items():
        table.add_row(name, text)
    Console().print(table)
    if not no_picture:
        out = picture or store.with_suffix(".png")
        draw(store, out)
        typer.echo(f"picture: {out}")
