"""geomano bench kernels | train | accuracy | data"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure speed, after checking that the numbers are right, and accuracy.",
)


@app.callback()
def _bench() -> None:
    pass


@app.command()
def kernels(
    shape: Annotated[
        list[str] | None, typer.Option(help="darcy or navier_stokes: the scans of the recipes. Both by default.")
    ] = None,
    size: Annotated[
        tuple[int, int, int, int] | None,
        typer.Option(help="Another scan: height, width, channels E, dstates N.", metavar="H W E N"),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples at once.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; the best time of each backend counts.")] = 3,
    out: Annotated[
        Path | None, typer.Option(help="JSON file for the numbers. By default benchmarks/kernels-DATE.json.")
    ] = None,
    gpu_audit: Annotated[
        bool,
        typer.Option(
            "--gpu-audit", help="Instead of timing: memory traffic and roofline of the Triton kernels, no GPU needed."
        ),
    ] = False,
    compile_for_gpus: Annotated[
        bool,
        typer.Option("--compile", help="With --gpu-audit: compile for six GPUs too; registers and spills. Minutes."),
    ] = False,
) -> None:
    """Time the scan on every backend of this machine's CPU, against the plain-torch reference in the same run.

    A backend with wrong numbers gets no time. Speeds are ratios: times on a busy machine mean little.

    \b
    Examples:
      geomano bench kernels
      geomano bench kernels --shape darcy --batch 4
      geomano bench kernels --size 32 32 64 16 --out bench.json
      geomano bench kernels --gpu-audit --compile
    """
    if gpu_audit:
        _audit(compile_for_gpus)
        return
    from dataclasses import replace

    from geomano_hpc.bench.kernels.speed import SHAPES, Shape, bench_kernels
    from geomano_hpc.errors import ConfigError

    unknown = [name for name in shape or [] if name not in SHAPES]
    if unknown:
        raise ConfigError(f"unknown shape {unknown[0]!r}; choose from {', '.join(SHAPES)}, or give --size H W E N")
    chosen = {name: SHAPES[name] for name in shape or ([] if size else SHAPES)}
    if size:
        chosen["given"] = Shape(1, *size)
    chosen = {name: replace(problem, batch=batch) for name, problem in chosen.items()}
    out = out or Path("benchmarks") / f"kernels-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    content = bench_kernels(chosen, repeats, out, show_progress=True)
    for line in _table(content["rows"]):
        typer.echo(line)
    typer.echo(f"wrote {out}", err=True)


@app.command()
def train(
    problem: Annotated[list[str] | None, typer.Option(help="darcy or navier_stokes. Both by default.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Both models in turns; the best round of each counts.")] = 3,
    out: Annotated[
        Path | None, typer.Option(help="JSON file for the numbers. By default benchmarks/train-DATE.json.")
    ] = None,
) -> None:
    """Time training and inference of GeoMaNO against Transolver, each in the paper's configuration, and their memory.

    Prints the paper's efficiency table with what was measured here. A few steps are timed and multiplied to an epoch.

    \b
    Examples:
      geomano bench train
      geomano bench train --problem darcy --rounds 5
    """
    from geomano_hpc.bench.data.parts import table
    from geomano_hpc.bench.train.efficiency import CASES, bench_train, efficiency_table
    from geomano_hpc.errors import ConfigError

    unknown = [name for name in problem or [] if name not in CASES]
    if unknown:
        raise ConfigError(f"unknown problem {unknown[0]!r}; choose from {', '.join(CASES)}")
    out = out or Path("benchmarks") / f"train-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    content = bench_train({name: CASES[name] for name in problem or CASES}, rounds, out, show_progress=True)
    for line in [*efficiency_table(content), "", *table(content)]:
        typer.echo(line)
    typer.echo(f"wrote {out}", err=True)


@app.command()
def accuracy(
    problem: Annotated[list[str] | None, typer.Option(help="darcy or navier_stokes. Both by default.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of every model.")] = 3,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a key for all models, such as training.epochs=5.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where run folders are.")] = Path("runs"),
    at_once: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 2,
    out: Annotated[
        Path | None, typer.Option(help="JSON file for the numbers. By default benchmarks/accuracy-DATE.json.")
    ] = None,
) -> None:
    """Train our model and the baselines on the same data for the same epochs, at equal size, and compare their errors.

    Makes its own data. Killed and started again, it goes on where it was. Hours on a CPU: start with --set
    training.epochs=2 --seeds 1 to see the cost. FNO needs the extra geomano_hpc[baselines].

    \b
    Examples:
      geomano bench accuracy --problem darcy
      geomano bench accuracy --problem navier_stokes --set training.epochs=20
    """
    from geomano_hpc.bench.accuracy import CONTESTS, bench_accuracy, table
    from geomano_hpc.config.recipe_files import split_override
    from geomano_hpc.errors import ConfigError

    unknown = [name for name in problem or [] if name not in CONTESTS]
    if unknown:
        raise ConfigError(f"unknown problem {unknown[0]!r}; choose from {', '.join(CONTESTS)}")
    contests = {name: CONTESTS[name] for name in problem or CONTESTS}
    changes = dict(split_override(text) for text in set_ or [])
    out = out or Path("benchmarks") / f"accuracy-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    content = bench_accuracy(contests, seeds, changes, runs, at_once, out)
    for line in table(content):
        typer.echo(line)
    typer.echo(f"wrote {out}", err=True)


@app.command()
def data(
    part: Annotated[
        list[str] | None, typer.Option(help="generation, conversion or loading; may be repeated. All by default.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Less data and fewer rounds: noisier, in seconds.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="JSON file for the numbers. By default benchmarks/data-DATE.json.")
    ] = None,
) -> None:
    """Time how data is generated, converted and loaded, against the plain way to do it in the same run.

    What gives wrong numbers gets no time. Speeds are ratios, each with its bar: times on a busy machine mean little.

    \b
    Examples:
      geomano bench data
      geomano bench data --part loading --quick
    """
    from geomano_hpc.bench.data.parts import PARTS, bench_data, table
    from geomano_hpc.errors import ConfigError

    unknown = [name for name in part or [] if name not in PARTS]
    if unknown:
        raise ConfigError(f"unknown part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    out = out or Path("benchmarks") / f"data-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    content = bench_data(part or PARTS, quick, out)
    for line in table(content):
        typer.echo(line)
    typer.echo(f"wrote {out}", err=True)


def _audit(compile_for_gpus: bool) -> None:
    import os
    import subprocess
    import sys

    from geomano_hpc.bench.kernels.gpu_audit import CASES, audit_kernels, roofline_table, traffic_table
    from geomano_hpc.errors import GeomanoError

    typer.echo("counting memory traffic in Triton's interpreter: some minutes", err=True)
    audits = audit_kernels(CASES, show_progress=True)
    for line in [*traffic_table(audits), "", *roofline_table(audits)]:
        typer.echo(line)
    if compile_for_gpus:
        typer.echo("compiling every kernel for six GPUs: some minutes", err=True)
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        command = [sys.executable, "-m", "geomano_hpc.kernels.audit.compilation"]
        typer.echo("")
        if subprocess.run(command, env=environment, check=False).returncode:
            raise GeomanoError("a kernel does not compile: see above")


def _table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{'':27}  {'':8}  {'forward':^27}  {'forward + backward':^27}  {'extra':>6}",
        f"{'shape':13}  {'kind':4}  {'backend':9} {'error':>8}"
        + 2 * f"  {'time':>9} {'x ref.':>8} {'floor':>8}"
        + f"  {'memory':>6}",
    ]
    for row in rows:
        line = f"{row['shape']:13}  {row['kind']:4}  {row['backend']:9} {row['error']:8.1e}"
        for part in ("forward", "forward_backward"):
            floor = row[f"{part}_of_floor"]
            share = "" if floor is None else f"{floor:.0%}"
            line += f"  {row[f'{part}_s'] * 1e3:6.1f} ms {row[f'{part}_speedup']:8.1f} {share:>8}"
        memory = row["extra_memory"]
        lines.append(line + f"  {'' if memory is None else f'{memory:.2f}':>6}")
    return lines
