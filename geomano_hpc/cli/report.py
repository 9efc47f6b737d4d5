"""geomano report"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geomano_hpc.cli.output import Json, note, print_json, stdout_for
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
    json_: Json = False,
) -> None:
    """Print the tables of a study, what was measured beside what the paper prints, and write them with pictures.

    The folder gets report.md, .tex, .csv, one page report.html that holds everything, and each picture as PNG and PDF.

    \b
    Examples:
      geomano report demo
      geomano report darcy_main navier_stokes_main --out paper --format latex
      geomano report depth --table scalability --format html
      geomano report demo --no-figures --json
    """
    from typing import get_args

    from geomano_hpc.launch.study import TableName
    from geomano_hpc.report.study_report import FORMATS, write_report

    if format_ not in FORMATS:
        raise ConfigError(f"--format {format_!r} is not known; choose one of {', '.join(FORMATS)}")
    if json_ and format_ != "terminal":
        raise ConfigError(f"--json and --format {format_} print different things; choose one")
    known: tuple[TableName, ...] = get_args(TableName)
    for name in table or []:
        if name not in known:
            raise ConfigError(f"--table {name!r} is not known; choose one of {', '.join(known)}")
    chosen = [name for name in known if name in (table or [])]
    with stdout_for(json_):
        done = write_report([find_study(study, runs) for study in studies], out, chosen, figures)
    if json_:
        print_json(_object(done))
    elif format_ == "terminal":
        _print(done)
    elif format_ == "html":
        page = next(file for file in done.files if file.suffix == ".html")
        typer.echo(page.resolve().as_uri())
    else:
        suffix = {"markdown": ".md", "latex": ".tex", "csv": ".csv"}[format_]
        text = next(file for file in done.files if file.suffix == suffix).read_text(encoding="utf-8")
        typer.echo(text, nl=False)
    for file in done.files:
        note(f"wrote {file}")


def _object(done: "Report") -> dict[str, Any]:
    tables = [
        {
            "name": table.name,
            "title": table.title,
            "columns": table.columns,
            "rows": [
                [{"text": cell.text, "value": cell.value, "best": cell.best} for cell in row] for row in table.rows
            ],
            "notes": table.notes,
        }
        for table in done.tables
    ]
    return {"title": done.title, "about": done.about, "facts": done.facts, "tables": tables, "files": done.files}


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
        for line in table.notes:
            console.print(line, markup=False, highlight=False, style="dim")
