"""Of which split and which fields the numbers of a report are."""

import csv
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from geomano_hpc.launch import Study
from geomano_hpc.report.figures import loss_curves
from geomano_hpc.report.runs import read_runs, variants_of
from geomano_hpc.report.study_report import make_report, write_report
from geomano_hpc.training.records.run_folder import RunFolder
from tests.support.written_runs import write_study

CHOSEN = "Weights chosen on the validation split, errors of the test split"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two depths with two seeds each."""
    made = Study(name="s", recipe="darcy", axes={"model.depth": [1, 2]}, seeds=[0, 1])
    write_study(made, tmp_path / "s")
    return tmp_path / "s"


def tell(study: Path, *told: dict[str, Any]) -> None:
    for file, more in zip(sorted(study.glob("*/result.json")), told, strict=False):
        file.write_text(json.dumps({**json.loads(file.read_text()), **more}))


def test_several_target_fields_have_a_column_each(study: Path) -> None:
    by_field: list[dict[str, Any]] = [
        {"rel_l2_by_field": {"u": 0.1, "p": 0.3}},
        {"rel_l2_by_field": {"u": 0.3, "p": 0.3}},
    ]
    tell(study, *by_field)
    report = write_report([study], with_figures=False)
    (variants,) = report.tables
    assert variants.columns[:5] == ["variant", "rel-L2", "u", "p", "paper"]
    assert [cell.text for cell in variants.rows[0][2:4]] == ["0.20000 ± 0.14142", "0.30000 ± 0.00000"]
    assert [cell.text for cell in variants.rows[1][2:4]] == ["-", "-"]
    rows = list(csv.DictReader((study / "report" / "report.csv").open()))
    assert [(row["rel_l2:u"], row["rel_l2:p"]) for row in rows] == [("0.1", "0.3"), ("0.3", "0.3"), ("", ""), ("", "")]


def test_one_target_field_has_no_column_of_its_own(study: Path) -> None:
    tell(study, {"rel_l2_by_field": {"u": 0.1}})
    report = write_report([study], with_figures=False)
    assert report.tables[0].columns[:3] == ["variant", "rel-L2", "paper"]
    (row, *_) = csv.DictReader((study / "report" / "report.csv").open())
    assert not any(":" in column for column in row)


def test_notes_say_which_weights_were_judged(study: Path) -> None:
    def notes() -> list[str]:
        return make_report([study], with_figures=False).tables[-1].notes[:3]

    assert notes()[1] == "Weights of the last epoch."
    tell(study, *[{"weights": "best"}] * 4)
    assert notes()[1] == f"{CHOSEN}."
    tell(study, {"weights": "last"})
    assert notes()[1:] == [f"{CHOSEN}: 3 of 4 runs.", "Weights of the last epoch: 1 of 4 runs."]
    assert notes()[0].startswith("Relative L2 error on the test split")


def test_errors_of_the_validation_split_are_in_the_csv(study: Path) -> None:
    tell(study, {"validation_rel_l2": 0.5})
    write_report([study], with_figures=False)
    one, two, *_ = csv.DictReader((study / "report" / "report.csv").open())
    assert (one["validation_rel_l2"], two["validation_rel_l2"]) == ("0.5", "")


def judged(study: Path) -> tuple[str, list[list[float]]]:
    """Title and curves of the right picture."""
    figure = loss_curves(variants_of(read_runs([study])))
    axes = figure.axes[1]
    found = axes.get_title(), [list(line.get_ydata()) for line in axes.get_lines()]
    plt.close(figure)
    return found


def test_curves_are_of_the_split_that_was_judged_while_training(study: Path) -> None:
    assert judged(study)[0] == "test relative L2 error"
    for number, file in enumerate(sorted(study.glob("*/metrics.jsonl"))):
        lines = RunFolder(file.parent).metrics()
        for line in lines:
            line["validation_rel_l2"] = 0.5
            line["test_rel_l2"] = None
        lines[-1]["test_rel_l2"] = 0.75  # judged once, at the end
        for line in lines[:-1] if number % 2 else []:
            del line["test_rel_l2"]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert judged(study) == ("validation relative L2 error", [[0.5] * 4] * 4)
    first = min(study.glob("*/metrics.jsonl"))
    kept = [{"epoch": number, "train_loss": 1.0, "test_rel_l2": 0.25} for number in (1, 2)]
    first.write_text("".join(json.dumps(line) + "\n" for line in kept))
    title, curves = judged(study)
    assert title == "test and validation relative L2 error"
    assert curves[0] == [0.25, 0.25]
