"""A report as one HTML page that needs nothing else: no network, no other files, light and dark, any width."""

import base64
import math
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from geomano_hpc.report.table import Cell, Table

if TYPE_CHECKING:
    from geomano_hpc.report.figures import Picture
    from geomano_hpc.report.study_report import Report

_ASSETS = resources.files("geomano_hpc.report") / "page"
# The browser itself sees to it that the page asks nobody for anything.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
LONG = 25  # rows; a longer table scrolls in a box of its own and can be filtered


def to_html(report: "Report", pictures: Sequence[bytes]) -> str:
    style = (_ASSETS / "page.css").read_text(encoding="utf-8")
    script = (_ASSETS / "page.js").read_text(encoding="utf-8")
    sections = [_table(table) for table in report.tables]
    figures = [_picture(picture, light) for picture, light in zip(report.pictures, pictures, strict=True)]
    # The paper's tables come first, then the pictures, then the runs without a result.
    last = [sections.pop()] if report.tables and report.tables[-1].name == "without_result" else []
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in report.facts)
    about = f"<p class=about>{escape(report.about)}</p>" if report.about else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(report.title)}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{escape(report.title)}</h1>{about}<ul class=facts>{facts}</ul></header>
<main>
{"".join([*sections, *figures, *last])}</main>
<script>
{script}</script>
</body>
</html>
"""


def _table(table: Table) -> str:
    head = "".join(
        f"<th scope=col{' class=number' if _is_numeric(table, index) else ''}>{escape(column)}</th>"
        for index, column in enumerate(table.columns)
    )
    body = "".join(
        "<tr>" + "".join(_cell(cell, _is_numeric(table, index)) for index, cell in enumerate(row)) + "</tr>\n"
        for row in table.rows
    )
    long = len(table.rows) > LONG
    search = (
        f'<input type=search class=filter placeholder="Filter {len(table.rows)} rows" aria-label="Filter rows">'
        if long
        else ""
    )
    notes = "".join(f"<p class=note>{escape(note)}</p>" for note in table.notes)
    rows = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"
    box = f'<div class="scroll{" long" if long else ""}" tabindex=0>{rows}</div>'
    return f'<section id="{escape(table.name)}"><h2>{escape(table.title)}</h2>{search}{box}{notes}</section>\n'


def _is_numeric(table: Table, column: int) -> bool:
    return any(row[column].value is not None for row in table.rows)


def _cell(cell: Cell, numeric: bool) -> str:
    names = [name for name, on in (("number", numeric), ("best", cell.best)) if on]
    attributes = f' class="{" ".join(names)}"' if names else ""
    if cell.value is not None and math.isfinite(cell.value):  # what has none is sorted last
        attributes += f' data-value="{cell.value!r}"'
    return f"<td{attributes}>{escape(cell.text)}</td>"


def _picture(picture: "Picture", light: bytes) -> str:
    sources = [base64.b64encode(data).decode() for data in (picture.on_dark(), light)]
    note = f"<figcaption>{escape(picture.note)}</figcaption>" if picture.note else ""
    return (
        f'<section id="{escape(picture.name)}"><h2>{escape(picture.title)}</h2><figure class=scroll><picture>'
        f'<source media="(prefers-color-scheme: dark)" srcset="data:image/png;base64,{sources[0]}">'
        f'<img alt="{escape(picture.title)}" src="data:image/png;base64,{sources[1]}"></picture>'
        f"{note}</figure></section>\n"
    )
