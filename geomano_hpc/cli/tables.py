"""Tables on the terminal."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from geomano_hpc.report.table import Table


def print_report(table: "Table") -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    shown = RichTable("variant", "test rel-L2 (mean ± std)", "seeds", "not finished", "parameters", title=table.study)
    for row in table.rows:
        unfinished = ", ".join(row.unfinished) or "-"
        shown.add_row(row.variant, row.in_words(), str(len(row.errors)), unfinished, str(row.parameters or "-"))
    console = Console()
    console.print(shown)
    for line in table.published_lines():
        console.print(line, highlight=False)
