"""A report as Markdown and as LaTeX (booktabs)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from geomano_hpc.report.table import Cell, Table

if TYPE_CHECKING:
    from geomano_hpc.report.study_report import Report


def to_markdown(report: "Report", pictures: Sequence[str]) -> str:
    lines = [f"# {report.title}", "", *([report.about, ""] if report.about else [])]
    lines += [f"- {_in_markdown(fact)}" for fact in report.facts]
    for table in report.tables:
        lines += ["", f"## {table.title}", "", _markdown_row(table.columns), "|---" * len(table.columns) + "|"]
        lines += [_markdown_row([_markdown_cell(cell) for cell in row]) for row in table.rows]
        for note in table.notes:
            lines += ["", _in_markdown(note)]
    for picture, file in zip(report.pictures, pictures, strict=True):
        lines += [
            "",
            f"## {picture.title}",
            "",
            f"![{picture.title}]({file})",
            *(["", picture.note] if picture.note else []),
        ]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _in_markdown(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _markdown_cell(cell: Cell) -> str:
    text = _in_markdown(cell.text)
    return f"**{text}**" if cell.best else text


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$\dagger$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def _in_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def to_latex(report: "Report", pictures: Sequence[str]) -> str:
    """Tables and figures to \\input into a document that has the packages booktabs, longtable and graphicx."""
    lines = [f"% {report.title}: needs \\usepackage{{booktabs,longtable,graphicx}}"]
    lines += [f"% {' '.join(fact.split())}" for fact in report.facts]
    for table in report.tables:
        lines += ["", *_latex_table(table)]
    for picture, file in zip(report.pictures, pictures, strict=True):
        caption = _in_latex(f"{picture.title}. {picture.note}".strip())
        graphic = f"\\includegraphics[width=\\linewidth]{{{file}}}"
        lines += ["", "\\begin{figure}[ht]", "\\centering", graphic, f"\\caption{{{caption}}}", "\\end{figure}"]
    return "\n".join(lines) + "\n"


def _latex_table(table: Table) -> list[str]:
    """longtable: an ablation of a hundred rows breaks over pages."""
    header = " & ".join(_in_latex(column) for column in table.columns) + " \\\\"
    numeric = [all(row[index].value is not None for row in table.rows) for index in range(len(table.columns))]
    lines = [
        f"\\begin{{longtable}}{{{''.join('r' if is_number else 'l' for is_number in numeric)}}}",
        f"\\caption{{{_in_latex(table.title)}}} \\label{{tab:{table.name}}} \\\\",
        f"\\toprule\n{header}\n\\midrule\n\\endfirsthead\n\\toprule\n{header}\n\\midrule\n\\endhead\n\\bottomrule\n\\endfoot",
    ]
    for row in table.rows:
        cells = [f"\\textbf{{{_in_latex(cell.text)}}}" if cell.best else _in_latex(cell.text) for cell in row]
        lines.append(" & ".join(cells) + " \\\\")
    return [*lines, "\\end{longtable}", *(f"\\noindent {_in_latex(note)}\n" for note in table.notes)]
