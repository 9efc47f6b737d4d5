"""geomano bench kernels | train | accuracy | resolution | linear-map | data"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from geomano_hpc.cli.once import Once
from geomano_hpc.cli.output import note

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure speed, after checking that the numbers are right, and accuracy.",
)

_Out = Annotated[Path | None, typer.Option(help="JSON file for the numbers. By default benchmarks/COMMAND-DATE.json.")]

_Device = Annotated[
    str | None, typer.Option(help="cpu, cuda or cuda:1. By default the GPU where there is one, else the CPU.")
]


@app.callback()
def _bench() -> None:
    pass


@app.command(cls=Once)
def kernels(
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="darcy or navier_stokes: the scans of the recipes; may be repeated. Both by default. With --gpu-audit "
            "any recipe."
        ),
    ] = None,
    size: Annotated[
        tuple[int, int, int, int] | None,
        typer.Option(help="Another scan: height, width, channels E, dstates N.", metavar="H W E N"),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Samples at once. By default the recipe's, and one for --size.")
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(min=1, help="CPU: rounds, of which the best counts [3]. GPU: the median of so many counts [30]."),
    ] = None,
    device: _Device = None,
    out: _Out = None,
    gpu_audit: Annotated[
        bool,
        typer.Option(
            "--gpu-audit",
            help="Instead of timing: instructions, registers, bytes, launches and the least time of the Triton "
            "kernels. Counted, no GPU needed.",
        ),
    ] = False,
    gpu: Annotated[
        list[str] | None,
        typer.Option(help="With --gpu-audit: 'RTX 8000', A100, H100, B200 or MI300X; may be repeated. All by default."),
    ] = None,
    compile_for_gpus: Annotated[
        bool,
        typer.Option("--compile", help="With --gpu-audit: compile for seven GPUs too; registers and spills. Minutes."),
    ] = False,
) -> None:
    """Time the scan: on a GPU the Triton kernels, forward and backward apart, with median and quartiles; on a CPU every
    backend, against the plain-torch reference in the same run.

    A backend with wrong numbers gets no time. Speeds on a CPU are ratios: times on a busy machine mean little.

    \b
    Examples:
      geomano bench kernels
      geomano bench kernels --device cpu
      geomano bench kernels --shape darcy --batch 1
      geomano bench kernels --size 32 32 64 16 --out bench.json
      geomano bench kernels --gpu-audit --gpu A100 --shape darcy
      geomano bench kernels --gpu-audit --compile
    """
    if gpu_audit:
        _audit(shape, gpu, compile_for_gpus)
        return
    from dataclasses import replace

    from geomano_hpc.bench import recipes
    from geomano_hpc.bench.gpu import measured_device
    from geomano_hpc.bench.kernels.device_speed import bench_on_device, device_table
    from geomano_hpc.bench.kernels.gpu_audit import bounds_for
    from geomano_hpc.bench.kernels.problem import Scan
    from geomano_hpc.bench.kernels.speed import bench_kernels, speed_table
    from geomano_hpc.bench.timers import timer_for

    scans = {name: recipes.scan(name) for name in _chosen("shape", shape, recipes.NAMES) if shape or not size}
    if size:
        scans["given"] = Scan(1, *size)
    if batch:
        scans = {name: replace(scan, batch=batch) for name, scan in scans.items()}
    out = out or _file("kernels")
    where = measured_device(device)
    if where.type == "cuda":
        found = bench_on_device(
            scans, repeats or 30, out, where, timer_for(where), bounds=bounds_for, show_progress=True
        )
        _print(device_table(found), out)
        return
    _print(speed_table(bench_kernels(scans, repeats or 3, out, show_progress=True)), out)


@app.command(cls=Once)
def train(
    problem: Annotated[list[str] | None, typer.Option(help="darcy or navier_stokes. Both by default.")] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="CPU: both in turns, the best of each counts [3]. GPU: the median of so many [30]."),
    ] = None,
    device: _Device = None,
    out: _Out = None,
) -> None:
    """Time training and inference of GeoMaNO against Transolver, each in the paper's configuration, and their memory.

    Prints the paper's efficiency table with what was measured here. A few steps are timed and multiplied to an epoch.
    On a GPU steps only; on a CPU also what the training loop adds to them, and two ranks against one.

    \b
    Examples:
      geomano bench train
      geomano bench train --device cuda
      geomano bench train --problem darcy --rounds 5
    """
    from geomano_hpc.bench.gpu import measured_device
    from geomano_hpc.bench.record import measurement_table
    from geomano_hpc.bench.timers import timer_for
    from geomano_hpc.bench.train.device_steps import bench_steps, steps_table
    from geomano_hpc.bench.train.efficiency import bench_train, cases, efficiency_table

    known = cases()
    out = out or _file("train")
    chosen = {name: known[name] for name in _chosen("problem", problem, known)}
    where = measured_device(device)
    if where.type == "cuda":
        content = bench_steps(chosen, rounds or 30, out, where, timer_for(where), show_progress=True)
        _print([*efficiency_table(content), "", *steps_table(content), "", *measurement_table(content)], out)
        return
    content = bench_train(chosen, rounds or 3, out, show_progress=True)
    _print([*efficiency_table(content), "", *measurement_table(content)], out)


@app.command(cls=Once)
def accuracy(
    problem: Annotated[
        list[str] | None,
        typer.Option(
            help="darcy, navier_stokes, navier_stokes_best or darcy_converged; may be repeated. "
            "The first two by default."
        ),
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Some of the models, such as 'geomano best,fno'. All by default.", metavar="A,B")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of every model.")] = 3,
    rate_epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of the search for rates. By default those of the comparison.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a key for all models, such as training.epochs=5.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where run folders are.")] = Path("runs"),
    at_once: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 2,
    out: _Out = None,
) -> None:
    """Train our model and the baselines on the same data for the same epochs, at equal size, and compare their errors.

    The learning rate of each model is searched first, alike: on a fifth of the training samples, held out, from a grid
    that is widened until no best rate lies at its edge. --set training.lr=3e-3 gives all of them one rate, and nothing
    is searched.

    Makes its own data; killed and started again, it goes on where it was. Pictures of the search, and of the errors
    over epochs and over time, are written beside the JSON file. Hours on a CPU: start with --set training.epochs=2
    --seeds 1 to see the cost. navier_stokes_best trains all models with the keys `rollout` of our recipe of that name.
    darcy_converged has the paper's 500 epochs and 1,000 samples, and no search. FNO and U-NO need the extra
    geomano_hpc[baselines].

    \b
    Examples:
      geomano bench accuracy --problem darcy
      geomano bench accuracy --problem darcy --models "geomano best,fno" --seeds 1
      geomano bench accuracy --problem navier_stokes --rate-epochs 3
      geomano bench accuracy --problem darcy_converged --seeds 2
    """
    from geomano_hpc.bench.accuracy import CONTESTS, USUAL, accuracy_table, bench_accuracy
    from geomano_hpc.bench.curves import draw_curves
    from geomano_hpc.bench.rate_views import draw_rates
    from geomano_hpc.bench.record import measurement_table
    from geomano_hpc.config.recipe_files import overrides_once

    contests = {name: CONTESTS[name] for name in _chosen("problem", problem or USUAL, CONTESTS)}
    if models is not None:
        names = [name.strip() for name in models.split(",")]
        contests = {problem: contest.only(names) for problem, contest in contests.items()}
    changes = overrides_once(set_ or [])
    out = out or _file("accuracy")
    content = bench_accuracy(contests, seeds, changes, runs, at_once, out, rate_epochs=rate_epochs)
    if any(row["rates"] for row in content["rows"]):
        draw_rates(content, out.with_suffix(".png"))
    draw_curves(content, out.with_name(f"{out.stem}_curves.png"))
    compared = ["", *measurement_table(content)] if content["measurements"] else []
    _print([*accuracy_table(content), *compared], out)


@app.command(cls=Once)
def resolution(
    model: Annotated[
        list[str] | None,
        typer.Option(help="'geomano best', geomano, fno, uno or transolver; may be repeated. All by default."),
    ] = None,
    trained_on: Annotated[int, typer.Option(min=3, help="Points a side of the training.")] = 43,
    evaluated_on: Annotated[
        list[int] | None, typer.Option(min=3, help="Points a side; may be repeated. By default 21, 43, 85 and 211.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of every model.")] = 3,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a key for all models, such as training.epochs=5.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where run folders are.")] = Path("runs"),
    at_once: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 2,
    out: _Out = None,
) -> None:
    """Train models on one grid and evaluate them on others, on the same samples, without training again.

    Ours is evaluated twice: keeping its lengths, and counting points. Makes its own data; killed and started again, it
    goes on where it was. A picture of the errors is written beside the JSON file. FNO and U-NO need the extra
    geomano_hpc[baselines].

    \b
    Examples:
      geomano bench resolution
      geomano bench resolution --model "geomano best" --model fno --seeds 1
      geomano bench resolution --trained-on 85 --evaluated-on 43
    """
    from geomano_hpc.bench.record import measurement_table
    from geomano_hpc.bench.resolution import CONTENDERS, bench_resolution, draw_resolutions, resolution_table
    from geomano_hpc.config.recipe_files import overrides_once

    contenders = {name: CONTENDERS[name] for name in _chosen("model", model, CONTENDERS)}
    grids = evaluated_on or [21, 43, 85, 211]
    out = out or _file("resolution")
    changes = overrides_once(set_ or [])
    content = bench_resolution(contenders, trained_on, grids, seeds, changes, runs, at_once, out)
    draw_resolutions(content, out.with_suffix(".png"))
    _print([*resolution_table(content), "", *measurement_table(content)], out)


@app.command(cls=Once)
def linear_map(
    variant: Annotated[
        list[str] | None, typer.Option(help="Such as 'without the scan' or fno; may be repeated. All by default.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Of every training.")] = 500,
    seeds: Annotated[int, typer.Option(min=1, help="Of every variant, at its best rate.")] = 3,
    runs: Annotated[Path, typer.Option(help="Where what was trained is remembered.")] = Path("runs"),
    out: _Out = None,
) -> None:
    """Train variants of our model on a linear map whose exact form is known: the velocity of a vorticity on the torus.

    Says what a scan can express and what keeps it from it: open ends, norm and gate, reach, missing biases. Each
    variant has the same steps and the best of a grid of rates. An hour or two on a CPU; killed and started again, it
    goes on where it was. A picture is written beside the JSON file.

    \b
    Examples:
      geomano bench linear-map
      geomano bench linear-map --variant rings --variant "without the scan" --seeds 1
    """
    from geomano_hpc.bench.linear_map import VARIANTS, bench_linear_map, draw_linear_map, linear_map_table

    variants = {name: VARIANTS[name] for name in _chosen("variant", variant, VARIANTS)}
    out = out or _file("linear_map")
    content = bench_linear_map(variants, steps, seeds, runs, out)
    draw_linear_map(content, out.with_suffix(".png"))
    _print(linear_map_table(content), out)


@app.command(cls=Once)
def data(
    part: Annotated[
        list[str] | None, typer.Option(help="generation, conversion or loading; may be repeated. All by default.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Less data and fewer rounds: noisier, in seconds.")] = False,
    out: _Out = None,
) -> None:
    """Time how data is generated, converted and loaded, against the plain way to do it in the same run.

    What gives wrong numbers gets no time. Speeds are ratios, each with its bar: times on a busy machine mean little.

    \b
    Examples:
      geomano bench data
      geomano bench data --part loading --quick
    """
    from geomano_hpc.bench.data.parts import PARTS, bench_data
    from geomano_hpc.bench.record import measurement_table

    chosen = _chosen("part", part, PARTS)
    out = out or _file("data")
    _print(measurement_table(bench_data(chosen, quick, out)), out)


def _audit(shape: list[str] | None, gpu: list[str] | None, compile_for_gpus: bool) -> None:
    from geomano_hpc.bench import recipes
    from geomano_hpc.bench.kernels import gpu_audit, step_bound
    from geomano_hpc.bench.kernels.gpus import GPUS

    names = shape or list(recipes.NAMES)
    scans = {name: recipes.scan(name) for name in names}
    steps = []
    for chosen in (GPUS[name] for name in _chosen("gpu", gpu, GPUS)):
        note(f"{chosen.name}: compiling what is new, and counting bytes in Triton's interpreter: some minutes")
        audits = gpu_audit.audit(scans, chosen, show_progress=True)
        tables = (gpu_audit.launch_table, gpu_audit.class_table, gpu_audit.bound_table)
        _print([line for table in tables for line in [f"{chosen.name}", *table(audits), ""]])
        steps += [step_bound.step_bound(name, chosen, audits) for name in names]
    _print(step_bound.step_table(steps))
    if compile_for_gpus:
        from geomano_hpc.bench.kernels.compilation import compilation_table, compile_all

        note("compiling every kernel for seven GPUs: some minutes")
        _print(["", *compilation_table(compile_all())])


def _chosen(what: str, given: Sequence[str] | None, known: Iterable[str]) -> list[str]:
    """What was asked for, or everything."""
    from geomano_hpc.errors import ConfigError

    names = list(known)
    for name in given or []:
        if name not in names:
            raise ConfigError(f"unknown {what} {name!r}; choose from {', '.join(names)}")
    return list(given or names)


def _file(part: str) -> Path:
    return Path("benchmarks") / f"{part}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"


def _print(lines: list[str], out: Path | None = None) -> None:
    for line in lines:
        typer.echo(line)
    if out is not None:
        note(f"wrote {out}")
