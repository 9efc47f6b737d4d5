"""geomano train, geomano eval, geomano predict"""

import os
from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change one key of the recipe, such as model.depth=4; may be repeated."),
]


def recipe_completions() -> list[str]:
    from geomano_hpc.config import recipe_names

    return recipe_names()


def train(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe or a YAML file.", autocompletion=recipe_completions)],
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run folder [runs/RECIPE/seed-S_HASH].")] = None,
    runs: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the resolved recipe and stop.")] = False,
    print_model: Annotated[
        bool, typer.Option("--print-model", help="Print the model's parameters and FLOPs by part and stop.")
    ] = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Profile a few steps, print where their time goes, write a trace, and stop."),
    ] = False,
    shape: Annotated[
        tuple[int, int, int] | None,
        typer.Option(
            metavar="H W C", help="With --print-model: grid and input channels, where there is no store yet to tell."
        ),
    ] = None,
) -> None:
    """Train one run. Started again, it goes on from its newest checkpoint; a finished run is not repeated.

    SIGTERM or SIGUSR2 on any rank saves the state at the next step and ends with exit code 75: start it again.

    Shipped recipes: darcy, navier_stokes (the paper's), darcy_best (ours), darcy_smoke, navier_stokes_smoke (a minute
    on a CPU). --set model.name=transolver (or fno, uno) trains a baseline in the same recipe.

    \b
    Examples:
      geomano train darcy_smoke
      geomano train darcy --set model.depth=4 --set training.epochs=50
      geomano train darcy --print-model --shape 85 85 1
      geomano train darcy_smoke --profile
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

        height, width, in_channels, out_channels = (*shape, 1) if shape else data_shape(resolved.data)
        for line in part_table(count_by_part(resolved.model, in_channels, out_channels, (height, width))):
            typer.echo(line)
        return
    from geomano_hpc.launch.study import run_name
    from geomano_hpc.training import loop
    from geomano_hpc.training.distributed.ranks import read_ranks
    from geomano_hpc.training.records.run_folder import RunFolder

    folder = RunFolder(out or runs / resolved.name / run_name({}, resolved))
    if profile:
        loop.profile(resolved, folder, typer.echo)
        return
    result = loop.train(resolved, folder)
    if read_ranks(os.environ).is_main:
        typer.echo(f"test rel-L2 {result['rel_l2']:.5f} after {result['epochs']} epochs: {folder.path}")


def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    store: Annotated[Path | None, typer.Option(help="Another store to evaluate on [the run's own].")] = None,
    resolution: Annotated[
        int | None,
        typer.Option(min=3, help="Points a side to evaluate at: from the store, or from the raw file beside it."),
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The weights of the smallest test error, not the last.")] = False,
) -> None:
    """Evaluate a trained run on the test split: relative L2 error in physical units, per frame too for a rollout.

    A model that was trained at one resolution may be evaluated at another (all but the encoder `global`). Under
    torchrun or srun the ranks share the samples; the numbers are the same.

    \b
    Examples:
      geomano eval runs/darcy_smoke/seed-0_1a2b3c4d
      geomano eval runs/darcy_smoke/seed-0_1a2b3c4d --resolution 85
      torchrun --nproc-per-node 4 -m geomano_hpc eval runs/navier_stokes/seed-0_1a2b3c4d
    """
    from geomano_hpc.training.distributed.ranks import read_ranks
    from geomano_hpc.training.distributed.world import join
    from geomano_hpc.training.engines.engine import pick_device
    from geomano_hpc.training.evaluate import evaluate as evaluate_split
    from geomano_hpc.training.evaluate import load_trained
    from geomano_hpc.training.records.run_folder import RunFolder

    folder, ranks = RunFolder(run), read_ranks(os.environ)
    join(ranks)
    model, task = load_trained(folder, store, resolution, best)
    device = pick_device(ranks)
    judged = evaluate_split(model.to(device), task, folder.recipe().training.batch_size, device, ranks)
    if not ranks.is_main:
        return
    where = f"{store or folder.recipe().data.store}, {' x '.join(map(str, task.split.grid))} points"
    typer.echo(f"test rel-L2 {judged.rel_l2:.5f} on {judged.samples} samples of {where}")
    for frame, error in enumerate(judged.rel_l2_by_frame or [], start=1):
        typer.echo(f"  frame {frame:2d} rel-L2 {error:.5f}")


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
    best: Annotated[bool, typer.Option("--best", help="The weights of the smallest test error, not the last.")] = False,
) -> None:
    """Predict from fields of your own, in physical units: a .npy file in, a .npy file out.

    A steady problem has one field as input, a rollout its first frames as the last axis (H, W, frames).

    \b
    Examples:
      geomano predict runs/darcy_smoke/seed-0_1a2b3c4d --input a.npy
      geomano predict runs/navier_stokes/seed-0_1a2b3c4d --input frames.npy --frames 20 --out rollout.npy
    """
    from geomano_hpc.training.predict import predict_file
    from geomano_hpc.training.records.run_folder import RunFolder

    target = out or input_.with_name(f"{input_.stem}_prediction.npy")
    shape = predict_file(RunFolder(run), input_, target, frames, best)
    typer.echo(f"wrote {target}: {' x '.join(map(str, shape))}")
