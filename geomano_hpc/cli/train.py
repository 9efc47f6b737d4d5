"""geomano train, geomano eval"""

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
    shape: Annotated[
        tuple[int, int, int] | None,
        typer.Option(
            metavar="H W C", help="With --print-model: grid and input channels, where there is no store yet to tell."
        ),
    ] = None,
) -> None:
    """Train one run. Started again, it goes on from its newest checkpoint; a finished run is not repeated.

    Shipped recipes: darcy, navier_stokes (the paper's), darcy_best (ours), darcy_smoke, navier_stokes_smoke (a minute
    on a CPU). --set model.name=transolver (or fno, uno) trains a baseline in the same recipe.

    \b
    Examples:
      geomano train darcy_smoke
      geomano train darcy --set model.depth=4 --set training.epochs=50
      geomano train darcy --print-model --shape 85 85 1
      torchrun --nproc-per-node 4 -m geomano_hpc train darcy
    """
    from geomano_hpc.config import load_recipe, to_yaml

    resolved = load_recipe(recipe, set_ or [])
    if print_config:
        typer.echo(to_yaml(resolved), nl=False)
        return
    if print_model:
        from geomano_hpc.models.flops import count_by_part, part_table
        from geomano_hpc.training.shapes import data_shape

        height, width, in_channels, out_channels = (*shape, 1) if shape else data_shape(resolved.data)
        for line in part_table(count_by_part(resolved.model, in_channels, out_channels, (height, width))):
            typer.echo(line)
        return
    from geomano_hpc.launch.study import run_name
    from geomano_hpc.training.loop import train as run_training
    from geomano_hpc.training.ranks import read_ranks
    from geomano_hpc.training.run_folder import RunFolder

    folder = RunFolder(out or runs / resolved.name / run_name({}, resolved))
    result = run_training(resolved, folder)
    if read_ranks(os.environ).is_main:
        typer.echo(f"test rel-L2 {result['rel_l2']:.5f} after {result['epochs']} epochs: {folder.path}")


def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    store: Annotated[Path | None, typer.Option(help="Another store to evaluate on [the run's own].")] = None,
    resolution: Annotated[
        int | None,
        typer.Option(min=3, help="Points a side to evaluate at: from the store, or from the raw file beside it."),
    ] = None,
) -> None:
    """Evaluate a trained run on the test split: relative L2 error in physical units.

    A model that was trained at one resolution may be evaluated at another (all but the encoder `global`).

    \b
    Examples:
      geomano eval runs/darcy_smoke/seed-0_1a2b3c4d
      geomano eval runs/darcy_smoke/seed-0_1a2b3c4d --resolution 85
    """
    from geomano_hpc.training.engine import pick_device
    from geomano_hpc.training.evaluate import load_trained, mean_error
    from geomano_hpc.training.ranks import Ranks
    from geomano_hpc.training.run_folder import RunFolder

    folder = RunFolder(run)
    model, task = load_trained(folder, store, resolution)
    alone = Ranks(0, 1, 0)
    device = pick_device(alone)
    error = mean_error(model.to(device), task, folder.recipe().training.batch_size, device, alone)
    where = f"{store or folder.recipe().data.store}, {' x '.join(map(str, task.split.grid))} points"
    typer.echo(f"test rel-L2 {error:.5f} on {len(task.split)} samples of {where}")
