"""The report of a study: its table and figures, written into the study's folder."""

from dataclasses import dataclass
from pathlib import Path

from geomano_hpc.atomic import write_text
from geomano_hpc.report.table import Table, make_table
from geomano_hpc.training.run_folder import run_folders


@dataclass(frozen=True)
class StudyReport:
    table: Table
    files: list[Path]


def write_report(study: Path, with_figures: bool = True) -> StudyReport:
    table = make_table(study)
    out = study / "report"
    text = table.to_markdown()
    files = []
    if with_figures:
        from geomano_hpc.report.figures import loss_curves, predictions

        folders = run_folders(study)
        finished = [folder for folder in folders if folder.is_finished]
        if any(folder.metrics() for folder in folders):
            loss_curves(folders, out / "loss_curves.png")
            files.append(out / "loss_curves.png")
        if finished:
            predictions(finished[0], out / "prediction.png")
            files.append(out / "prediction.png")
    pictures = "".join(f"\n![{file.stem}]({file.name})\n" for file in files)
    write_text(out / "report.md", text + pictures)
    return StudyReport(table, [out / "report.md", *files])
