"""geomano report"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geomano_hpc.cli.study import RUNS, Runs, find_study
from geomano_hpc.errors import ConfigError

if TYPE_CHECKING:
    from geomano_hpc.report.study_report import Report


def report(
    studies: Annotated[
        list[str], typer.Argument(help="Studies: names under runs/, or folders; several in one report.")
    ],
    runs: Runs = RUNS,
    format_: Annotated[
        str, typer.Option("--format", help="What is printed: terminal, markdown, latex, csv or html (its address).")
    ] = "terminal",
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="main, ablation, efficiency, error_bounds or scalability; may be repeated [the studies' own]."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the files [report/ in the study's folder].")] = None,
    figures: Annotated[bool, typer.Option(help="Draw curves and predictions too.")] = True,
) -> None:
    """Print the tables of a study, what was measured beside what the paper prints, and write them with pictures.

    The folder gets report.md, .tex, .csv, one page report.html that holds everything, and each picture as PNG and PDF.

    \b
    Examples:
      geomano report demo
      geomano report darcy_main navier_stokes_main --out paper --format latex
      geomano report depth --table scalability --format html
    """
    from typing import get_args

    from geomano_hpc.launch.study import TableName
    from geomano_hpc.report.study_report import FORMATS, write_report

    if format_ not in FORMATS:
        raise ConfigError(f"--format {format_!r} is not known; choose one of {', '.join(FORMATS)}")
    known: tuple[TableName, ...] = get_args(TableName)
    for name in table or []:
        if name not in known:
            raise ConfigError(f"--table {name!r} is not known; choose one of {', '.join(known)}")
    chosen = [name for name in known if name in (table or [])]
    done = write_report([find_study(study, runs) for study in studies], out, chosen, figures)
    if format_ == "terminal":
        _print(done)
    elif format_ == "html":
        page = next(file for file in done.files if file.suffix == ".html")
        typer.echo(page.resolve().as_uri())
    else:
        suffix = {"markdown": ".md", "latex": ".tex", "csv": ".csv"}[format_]
        text = next(file for file in done.files if file.suffix == suffix).read_text(encoding="utf-8")
        typer.echo(text, nl=False)
    for file in done.files:
        typer.echo(f"wrote {file}", err=True)


def _print(done: "Report") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console.print(f"[bold]{escape(done.title)}[/]" + (f": {escape(done.about)}" if done.about else ""), highlight=False)
    for fact in done.facts:
        console.print(f"  {fact}", markup=False, highlight=False)
    for table in done.tables:
        shown = Table(title=escape(table.title), title_justify="left")
        # A terminal is narrow: no columns that say nothing, and only words are broken.
        filled = [i for i in range(len(table.columns)) if any(row[i].text not in ("", "-") for row in table.rows)]
        for index in filled:
            numbers = any(row[index].value is not None for row in table.rows)
            shown.add_column(
                escape(table.columns[index]),
                justify="right" if numbers else "left",
                overflow="ellipsis" if numbers else "fold",
            )
        for row in table.rows:
            cells = [escape(row[index].text) for index in filled]
            shown.add_row(*(f"[bold]{c}[/]" if row[i].best else c for i, c in zip(filled, cells, strict=True)))
        console.print(shown)
        for note in table.notes:
            console.print(note, markup=False, highlight=False, style="dim")
