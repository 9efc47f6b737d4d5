"""geomano data generate | inspect | convert | verify | info"""

from pathlib import Path
from typing import Annotated

import typer

from geomano_hpc.cli.cluster import Cluster, NodeCount, Profile, RankCount, handed_to_cluster
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


@app.command(cls=Once)
def convert(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The Zarr store to write.")],
    problem: Annotated[
        str,
        typer.Option(help="steady or rollout, for your own data; or darcy, navier_stokes, burgers of the benchmark."),
    ],
    sources: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Raw files with the same variables: MATLAB, HDF5, PDEBench, The Well, NetCDF-4, Zarr, NPY, NPZ or "
            ".pt. Of the benchmark one, or two: training and test."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="What you call the problem [the name of --out].")] = None,
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "--input-key",
            help="A given field: NAME, NAME=KEY, NAME=FILE or NAME=FILE:KEY, perhaps with [CHANNEL]; may be repeated.",
        ),
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option("--target", "--target-key", help="steady: a field to predict; may be repeated.")
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="rollout: a field that changes in time; may be repeated.")
    ] = None,
    constant: Annotated[
        list[str] | None,
        typer.Option(help="A number of each sample, such as nu=KEY, nu=@ATTRIBUTE or nu=0.01; may be repeated."),
    ] = None,
    units: Annotated[list[str] | None, typer.Option(help="Of a field, such as p=Pa; may be repeated.")] = None,
    train: Annotated[
        str | None,
        typer.Option(help="A count, a share (0.8, 80%) or a file of numbers [what is left; benchmark 1000]."),
    ] = None,
    validation: Annotated[
        str | None, typer.Option(help="The same [a tenth if nothing is said of the splits, else none].")
    ] = None,
    test: Annotated[str | None, typer.Option(help="The same [a tenth or what is left; benchmark 200].")] = None,
    shuffle_seed: Annotated[
        int | None, typer.Option(min=0, help="Draw the splits at random by this seed [in the order of the files].")
    ] = None,
    validation_file: Annotated[
        list[Path] | None, typer.Option(help="A raw file that validates, beside those that train; may be repeated.")
    ] = None,
    test_file: Annotated[
        list[Path] | None, typer.Option(help="A raw file that tests, beside those that train; may be repeated.")
    ] = None,
    stride: Annotated[int | None, typer.Option(min=1, help="Keep every n-th point [1; darcy 5].")] = None,
    axes: Annotated[
        list[str] | None,
        typer.Option(
            help="Axes of the raw arrays in their order, out of sample x y z t c, such as 'x y t sample'; "
            "with a comma, those of the input and of the target; NAME='x y' of one field; may be repeated."
        ),
    ] = None,
    channel: Annotated[int | None, typer.Option(min=0, help="Take this channel of fields with several.")] = None,
    frames_in: Annotated[
        int | None, typer.Option("--frames-in", "--input-frames", min=1, help="rollout: frames that are given.")
    ] = None,
    frames_out: Annotated[
        int | None, typer.Option("--frames-out", "--target-frames", min=1, help="rollout: frames to predict.")
    ] = None,
    time_stride: Annotated[int | None, typer.Option(min=1, help="rollout: keep every n-th frame [1].")] = None,
    window_stride: Annotated[
        int | None, typer.Option(min=1, help="rollout: frames from one window to the next [--frames-out].")
    ] = None,
    boundary: Annotated[
        list[str] | None,
        typer.Option(help="periodic, wall, open or unknown; or of one axis, such as x=wall; may be repeated."),
    ] = None,
    spacing: Annotated[
        list[str] | None, typer.Option(help="Between points, such as 0.01; or of one axis, x=0.01; may be repeated.")
    ] = None,
    time_step: Annotated[float | None, typer.Option(help="rollout: time between two frames of the file.")] = None,
    normalise: Annotated[
        bool | None, typer.Option(help="Field by field, over the training split [yes; navier_stokes no].")
    ] = None,
    cluster: Cluster = "local",
    ranks: RankCount = None,
    nodes: NodeCount = None,
    profile: Profile = None,
) -> None:
    """Convert raw fields into a chunked, sharded Zarr store with statistics, splits and checksums.

    `geomano data inspect FILE` shows what is in a file, and the command that fits. Killed and started again, a
    conversion goes on where it was. docs/converting.md says what is read from each format.

    \b
    Examples:
      geomano data convert mine.h5 --problem steady --input k --input f --target p --out data/mine.zarr
      geomano data convert --problem steady --input k=coeff.npy --target u=sol.npy --out data/mine.zarr
      geomano data convert wake.nc --problem rollout --field u --field v --field p --constant Re --frames-in 4 \\
        --frames-out 8 --window-stride 2 --boundary y=wall --out data/wake.zarr
      geomano data convert smooth1.mat smooth2.mat --problem darcy --out data/darcy.zarr
      mpirun -n 8 geomano data convert ns.mat --problem navier_stokes --out data/navier_stokes.zarr
      geomano data convert ns.mat --problem navier_stokes --out data/ns.zarr --cluster slurm --ranks 16 --profile cpu
    """
    from geomano_hpc.cli.conversion import Words, asked_for, tell
    from geomano_hpc.data_prep.convert import convert as write
    from geomano_hpc.data_prep.ranks import abort_all, communicator

    words = Words(
        problem,
        name,
        out.stem,
        input_ or [],
        target or [],
        field or [],
        constant or [],
        {"train": train, "validation": validation, "test": test},
        shuffle_seed,
        {"validation": validation_file or [], "test": test_file or []},
        {
            "stride": stride,
            "channel": channel,
            "frames_in": frames_in,
            "frames_out": frames_out,
            "time_stride": time_stride,
            "window_stride": window_stride,
            "time_step": time_step,
            "normalise": normalise,
        },
        {"axes": axes or [], "boundary": boundary or [], "spacing": spacing or [], "units": units or []},
    )
    settings, files, roles = asked_for(words, sources or [])
    if handed_to_cluster(context, out):
        return
    world = communicator()
    with abort_all(world):
        done = write(files, settings, out, world, roles)
    if world.rank == 0:
        tell(done, out)


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
    from geomano_hpc.data_prep.inspect import inspect as look

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
