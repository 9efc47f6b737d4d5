"""geomano bench kernels"""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Measure speed, after checking that the numbers are right."
)


@app.callback()
def _bench() -> None:
    pass


@app.command()
def kernels(
    batch: Annotated[int, typer.Option(min=1)] = 1,
    height: Annotated[int, typer.Option(min=1)] = 32,
    width: Annotated[int, typer.Option(min=1)] = 32,
    channels: Annotated[int, typer.Option(min=1, help="E, channels of the scan.")] = 64,
    dstate: Annotated[int, typer.Option(min=1, help="N, hidden states per channel.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="The best of so many times counts.")] = 3,
    out: Annotated[Path | None, typer.Option(help="JSON file for the numbers, the date and the hardware.")] = None,
) -> None:
    """Time the scan on every backend that is available here. A backend with wrong numbers gets no time.

    \b
    Example:
      geomano bench kernels --height 64 --width 64 --channels 64 --out bench.json
    """
    from geomano_hpc.bench.kernels import Shape, bench_kernels

    content = bench_kernels(Shape(batch, height, width, channels, dstate), repeats, out)
    typer.echo(f"{'kind':4}  {'backend':10}  {'error':>8}  {'forward':>10}  {'forward+backward':>16}")
    for row in content["rows"]:
        typer.echo(
            f"{row['kind']:4}  {row['backend']:10}  {row['error']:8.1e}  {row['forward_s'] * 1e3:7.1f} ms  "
            f"{row['forward_backward_s'] * 1e3:13.1f} ms"
        )
    if out is not None:
        typer.echo(f"wrote {out}", err=True)
