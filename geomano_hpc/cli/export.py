"""geomano export"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from geomano_hpc.cli.train import Best


class Format(StrEnum):
    PT2 = "pt2"
    ONNX = "onnx"


def export(
    run: Annotated[Path, typer.Argument(help="A finished run folder, or one of its .safetensors files.")],
    format_: Annotated[Format, typer.Option("--format", help="torch.export's archive, or ONNX.")] = Format.PT2,
    out: Annotated[Path | None, typer.Option(help="The file to write [model.pt2 or .onnx beside the weights].")] = None,
    batch: Annotated[str, typer.Option(help="Samples of a call, or dynamic for any number.")] = "1",
    any_grid: Annotated[bool, typer.Option("--any-grid", help="Take any grid, not only that of the training.")] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Frames of a rollout in one call [the next one].")] = None,
    best: Best = None,
) -> None:
    """Export a trained run for other programs: fields in physical units in, predictions in physical units out.

    pt2 is loaded with torch.export.load in a process that did `import geomano_hpc`, whose scan it calls. onnx holds the
    scan as loops of plain operations and runs without this package; writing it needs geomano_hpc[onnx].

    \b
    Examples:
      geomano export runs/darcy_smoke/seed-0_1a2b3c4d --batch dynamic
      geomano export runs/darcy_smoke/seed-0_1a2b3c4d --format onnx --any-grid --out darcy.onnx
      geomano export runs/navier_stokes/seed-0_1a2b3c4d --steps 10
    """
    from geomano_hpc.api.run import load
    from geomano_hpc.errors import ConfigError
    from geomano_hpc.training.records.run_folder import RunFolder

    if batch != "dynamic" and not batch.isdigit():
        raise ConfigError(f"--batch {batch}: write dynamic or a number of samples")
    samples: int | Literal["dynamic"] = "dynamic" if batch == "dynamic" else int(batch)
    weights = RunFolder(run).weights(best) if run.is_dir() else run
    target = out or weights.with_suffix(f".{format_}")
    card = load(run, best=best, device="cpu").export(
        target, format=format_.value, batch=samples, any_grid=any_grid, steps=steps
    )
    frames = f", {card['frames']} frame{'s' if card['frames'] > 1 else ''} of the rollout" if card["frames"] else ""
    shapes = " -> ".join(" x ".join(map(str, card[name])) for name in ("input", "output"))
    typer.echo(f"wrote {target}: {shapes} in physical units{frames}")
    if card["needs"]:
        typer.echo(card["needs"])
