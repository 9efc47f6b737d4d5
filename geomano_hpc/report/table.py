"""A table of the report, before it is Markdown, LaTeX, CSV or HTML."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | None = None  # what the text says, for sorting and for CSV
    best: bool = False


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    columns: list[str]
    rows: list[list[Cell]]
    notes: list[str] = field(default_factory=list)

    def with_best(self, columns: Sequence[int]) -> "Table":
        """The smallest number of each of these columns is the best. One number alone is not the best of anything, and
        one that is not finite does not compete."""
        rows = [list(row) for row in self.rows]
        for column in columns:
            values = [value for row in rows if (value := row[column].value) is not None and math.isfinite(value)]
            for row in rows:
                if len(values) > 1 and row[column].value == min(values):
                    row[column] = replace(row[column], best=True)
        return replace(self, rows=rows)


def number(value: float | None, digits: int) -> Cell:
    return Cell("-") if value is None else Cell(f"{value:.{digits}f}", value)


def words(*texts: str) -> list[Cell]:
    return [Cell(text) for text in texts]
