"""Tables on the terminal."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from geomano_hpc.report.table import Table


def print_report(table: "Table") -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    from geomano_hpc.report.table import COLUMNS

    shown = RichTable(*COLUMNS, title=table.study)
    for row in table.rows:
        shown.add_row(*row.cells())
    console = Console()
    console.print(shown)
    for line in table.published_lines():
        console.print(line, highlight=False)
