"""Tables on the terminal."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from geomano_hpc.report.table import Table


def print_report(table: "Table") -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    from geomano_hpc.report.table import COLUMNS

    shown = RichTable(title=f"{table.study}: relative L2 error on the test split, mean and deviation over seeds")
    cells = [row.cells() for row in table.rows]
    filled = [index for index in range(len(COLUMNS)) if any(row[index] != "-" for row in cells)]
    for index in filled:  # a terminal is narrow: no empty columns, and only names are broken
        shown.add_column(COLUMNS[index], no_wrap=COLUMNS[index] not in ("variant", "missing"), overflow="fold")
    for row in cells:
        shown.add_row(*(row[index] for index in filled))
    console = Console()
    console.print(shown)
    for line in table.published_lines():
        console.print(line, highlight=False)
