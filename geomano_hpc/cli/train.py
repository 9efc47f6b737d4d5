"""geomano train, geomano eval, geomano predict"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geomano_hpc.cli.output import Json, print_json, stdout_for
from geomano_hpc.errors import ConfigError

if TYPE_CHECKING:
    from geomano_hpc.training.records.run_folder import RunFolder

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change one key of the recipe, such as model.depth=4; may be repeated."),
]


Best = Annotated[
    bool | None,
    typer.Option("--best/--last", help="Weights that the validation split chose, or the last [the result's]."),
]


def recipe_completions() -> list[str]:
    from geomano_hpc.config import recipe_names

    return recipe_names()


def _profile_is_of_clusters(given: bool) -> None:
    if given:
        raise ConfigError("train has no --profile: --trace shows where the time goes; launch --profile names a cluster")


def train(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe or a YAML file.", autocompletion=recipe_completions)],
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run folder [runs/RECIPE/seed-S_HASH].")] = None,
    runs: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the resolved recipe and stop.")] = False,
    print_model: Annotated[
        bool, typer.Option("--print-model", help="Print the model's parameters and FLOPs by part and stop.")
    ] = False,
    trace: Annotated[
        bool,
        typer.Option("--trace", help="Trace a few steps: print where their time goes, write a trace, and stop."),
    ] = False,
    _profile: Annotated[
        bool, typer.Option("--profile", hidden=True, is_eager=True, callback=_profile_is_of_clusters)
    ] = False,
    shape: Annotated[
        tuple[int, int, int] | None,
        typer.Option(
            metavar="H W C", help="With --print-model: grid and input channels, where there is no store yet to tell."
        ),
    ] = None,
) -> None:
    """Train one run. Started again, it goes on from its newest checkpoint; a finished run is not repeated.

    Ctrl-C, SIGTERM or SIGUSR2 on any rank saves the state at the next step, and the same command goes on from there.
    The exit code is 130 after Ctrl-C, else 75.

    Shipped recipes: steady, line, rollout (your own data: they need --set data.store=... only), darcy, navier_stokes
    (the paper's), darcy_best, darcy_fast, navier_stokes_best (ours), darcy_smoke, navier_stokes_smoke (a minute on a
    CPU). --set model.name=transolver (or fno, uno) trains a baseline in the same recipe, and
    --set model.name=mypackage.nets:MyNet a model of your own.

    \b
    Examples:
      geomano train darcy_smoke
      geomano train steady --set data.store=data/mine.zarr
      geomano train darcy --set model.depth=4 --set training.epochs=50
      geomano train darcy --print-model --shape 85 85 1
      geomano train darcy_smoke --trace
      torchrun --nproc-per-node 4 -m geomano_hpc train darcy --set training.zero=1
      deepspeed --num_gpus 4 --module geomano_hpc train darcy
      srun --ntasks 4 geomano train darcy
      mpirun -n 2 geomano train darcy_smoke --set training.engine=torch
    """
    from geomano_hpc.config import load_recipe, to_yaml

    resolved = load_recipe(recipe, set_ or [])
    if print_config:
        typer.echo(to_yaml(resolved), nl=False)
        return
    if print_model:
        from geomano_hpc.models.common.flops import count_by_part, part_table
        from geomano_hpc.training.shapes import data_shape

        known = (*shape, 1) if shape else data_shape(resolved)
        height, width, in_channels, out_channels = known
        for line in part_table(count_by_part(resolved.model, in_channels, out_channels, (height, width))):
            typer.echo(line)
        return
    from geomano_hpc.api import training
    from geomano_hpc.training.distributed.ranks import read_ranks

    if trace:
        from geomano_hpc.training import traced
        from geomano_hpc.training.records.run_folder import RunFolder

        traced.trace(resolved, RunFolder(training.run_folder(resolved, out, runs)), typer.echo)
        return
    result = training.train(resolved, out=out, runs=runs)
    if read_ranks(os.environ).is_main:
        chosen = ", weights chosen on the validation split" if result.weights == "best" else ""
        typer.echo(f"test rel-L2 {result.rel_l2:.5f} after {result.epochs} epochs{chosen}: {result.folder}")
        for name, error in (result.rel_l2_by_field or {}).items():
            typer.echo(f"  {name} rel-L2 {error:.5f}")


def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    store: Annotated[Path | None, typer.Option(help="Another store to evaluate on [the run's own].")] = None,
    split: Annotated[str, typer.Option(help="test, validation or train.")] = "test",
    resolution: Annotated[
        int | None,
        typer.Option(min=3, help="Points a side to evaluate at: from the store, or from the raw file beside it."),
    ] = None,
    best: Best = None,
    json_: Json = False,
) -> None:
    """Evaluate a trained run on the test split: relative L2 error in physical units, by field and by frame too.

    A model that was trained at one resolution may be evaluated at another (all but the encoder `global`). Under
    torchrun or srun the ranks share the samples; the numbers are the same.

    \b
    Examples:
      geomano eval runs/darcy_smoke/seed-0_1a2b3c4d
      geomano eval runs/darcy_smoke/seed-0_1a2b3c4d --resolution 85
      geomano eval runs/darcy_smoke/seed-0_1a2b3c4d --json
      torchrun --nproc-per-node 4 -m geomano_hpc eval runs/navier_stokes/seed-0_1a2b3c4d
    """
    from geomano_hpc.training.distributed.ranks import read_ranks
    from geomano_hpc.training.distributed.world import join
    from geomano_hpc.training.engines.engine import pick_device
    from geomano_hpc.training.evaluate import evaluate as evaluate_split
    from geomano_hpc.training.evaluate import load_trained
    from geomano_hpc.training.records.run_folder import RunFolder

    if split not in ("train", "validation", "test"):
        raise ConfigError(f"--split {split!r} is not known; choose one of train, validation, test")
    folder, ranks = RunFolder(run), read_ranks(os.environ)
    with stdout_for(json_):
        join(ranks)
        model, task = load_trained(folder, store, resolution, best, split)
        device = pick_device(ranks)
        judged = evaluate_split(model.to(device), task, folder.recipe().training.batch_size, device, ranks)
    if not ranks.is_main:
        return
    data, grid = store or folder.recipe().data.store, task.split.grid
    if json_:
        facts = {"run": run, "weights": _weights(folder, best), "store": data, "split": split, "grid": grid}
        print_json({**facts, **asdict(judged)})
        return
    where = f"{data}, {' x '.join(map(str, grid))} points"
    typer.echo(f"{split} rel-L2 {judged.rel_l2:.5f} on {judged.samples} samples of {where}")
    for name, error in (judged.rel_l2_by_field or {}).items():
        typer.echo(f"  {name} rel-L2 {error:.5f}")
    for frame, error in enumerate(judged.rel_l2_by_frame or [], start=1):
        typer.echo(f"  frame {frame:2d} rel-L2 {error:.5f}")


def _weights(folder: "RunFolder", best: bool | None) -> str:
    return "best" if folder.weights(best) == folder.best_weights_file else "last"


def predict(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    input_: Annotated[
        Path,
        typer.Option(
            "--input", help="A .npy file of inputs in physical units: (H, W), (samples, H, W) or (samples, H, W, C)."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The .npy file to write [INPUT with _prediction].")] = None,
    frames: Annotated[int | None, typer.Option(min=1, help="Frames of a rollout [as many as were trained].")] = None,
    best: Best = None,
    json_: Json = False,
) -> None:
    """Predict from fields of your own, in physical units: a .npy file in, a .npy file out.

    Several fields are on the last axis, in the order of `geomano data info`; a rollout has there the fields of its
    first frames, frame by frame, and then what does not change in time.

    \b
    Examples:
      geomano predict runs/darcy_smoke/seed-0_1a2b3c4d --input a.npy
      geomano predict runs/navier_stokes/seed-0_1a2b3c4d --input frames.npy --frames 20 --out rollout.npy
    """
    from geomano_hpc.training.predict import predict_file
    from geomano_hpc.training.records.run_folder import RunFolder

    target = out or input_.with_name(f"{input_.stem}_prediction.npy")
    with stdout_for(json_):
        shape = predict_file(RunFolder(run), input_, target, frames, best)
    if json_:
        weights = _weights(RunFolder(run), best)
        print_json({"run": run, "weights": weights, "input": input_, "output": target, "shape": shape})
        return
    typer.echo(f"wrote {target}: {' x '.join(map(str, shape))}")
