"""geomano data convert"""

from pathlib import Path
from typing import Annotated

import typer

from geomano_hpc.cli.cluster import Cluster, NodeCount, Profile, RankCount, handed_to_cluster


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
    from geomano_hpc.data_prep.conversion.convert import convert as write
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
