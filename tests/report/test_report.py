"""The report of a study: tables, files, and what it says of what was not run."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from geomano_hpc.config import Recipe
from geomano_hpc.errors import ConfigError, GeomanoError
from geomano_hpc.launch import Study, load_study, plan
from geomano_hpc.report import study_report
from geomano_hpc.report.estimate import estimate
from geomano_hpc.report.figures import MOST_CURVES
from geomano_hpc.report.runs import read_runs, variants_of
from geomano_hpc.report.study_report import Report, make_report, write_report
from geomano_hpc.report.table import Cell, Table
from geomano_hpc.slurm import load_profile
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.predictions import Predictions
from geomano_hpc.training.records.run_folder import RunFolder, run_folders
from tests.support.untraced import seconds_of
from tests.support.written_runs import write_study

DOCUMENT = (Path(__file__).parents[2] / "docs" / "studies.md").read_text()


def table(report: Report, name: str) -> list[list[str]]:
    (found,) = (table for table in report.tables if table.name == name)
    return [[f"**{cell.text}**" if cell.best else cell.text for cell in row] for row in found.rows]


def notes(report: Report, name: str) -> str:
    return "\n".join(next(table for table in report.tables if table.name == name).notes)


def with_changes(recipe: Recipe, seed: int, depth: int = 1) -> Recipe:
    content = recipe.model_dump()
    content["training"]["seed"], content["model"]["depth"] = seed, depth
    return Recipe.model_validate(content)


@pytest.fixture
def folders(tiny_recipe: Recipe, tmp_path: Path) -> Path:
    """Run folders that no launch has made: two depths with two seeds each; one of the runs is not finished."""
    measured: dict[int, list[float | None]] = {1: [0.1, 0.3], 2: [0.25, None]}
    for depth, errors in measured.items():
        for seed, error in enumerate(errors):
            folder = RunFolder(tmp_path / "study" / f"depth-{depth}_seed-{seed}")
            folder.write_recipe(with_changes(tiny_recipe, seed, depth))
            if error is not None:
                folder.write_result({"rel_l2": error, "problem": "darcy", "parameters": 10 * depth})
    return tmp_path / "study"


def test_variants_have_mean_and_deviation_over_seeds(folders: Path) -> None:
    one, two = variants_of(read_runs([folders]))
    assert (one.label, one.error.n) == ("depth 1", 2)
    assert one.error.mean == pytest.approx(0.2)
    assert one.error.deviation == pytest.approx(0.2**0.5 / 10**0.5)  # sample deviation of 0.1 and 0.3
    assert two.error.in_words() == "0.25000"  # one seed has no deviation
    assert [run.status.name for run in two.unfinished] == ["depth-2_seed-1"]


def test_report_says_what_was_not_run(folders: Path) -> None:
    report = make_report([folders], with_figures=False)
    assert report.facts[0] == "3 of 4 runs are done; 1 pending: listed at the end"
    assert table(report, "variants")[1] == ["depth 2", "0.25000 †", "-", "1", "1 pending", "20", "-"]
    assert table(report, "without_result") == [["depth-2_seed-1", "pending", "0/3", "", ""]]
    assert "10 of 1000 training samples; 4 of 200 test samples; 9 x 9 points, not 85 x 85; 3 of 500 epochs" in notes(
        report, "variants"
    )


def test_ablation_has_every_row_of_the_paper_beside_what_was_measured(tmp_path: Path) -> None:
    study = load_study("darcy_ablation")
    failed = {0: "RuntimeError: first line\nCUDA out of memory", 1: "x", 2: "x", 3: "x", 4: "x"}
    write_study(study, tmp_path / "a", failed=failed, pending={9: ""})
    report = make_report([tmp_path / "a"], with_figures=False)
    rows = table(report, "ablation_darcy")
    assert len(rows) == 12
    assert rows[0] == ["vanilla", "yes", "none", "0.00389", "0 of 5 done", "0 of 5"]
    assert rows[1] == ["vanilla", "none", "none", "0.00381", "**0.01650 ± 0.00129 †**", "4 of 5"]
    assert rows[9][:4] == ["2D", "none", "0011", "**0.00362**"]
    assert "data not at hand: its grid and samples are not checked" in notes(report, "ablation_darcy")
    without = table(report, "without_result")
    assert [row[1] for row in without] == ["failed"] * 5 + ["pending"]
    assert without[0][3] == "CUDA out of memory"
    assert without[0][4].endswith("logs/train.log")


def test_measured_number_is_marked_only_where_the_protocol_differs(
    tmp_path: Path, darcy_store: Path, full_stores: dict[str, Path]
) -> None:
    exact = Study(name="s", recipe="darcy", set={"data.store": str(tmp_path / "gone.zarr")}, seeds=[0])
    write_study(exact, tmp_path / "s")
    (variant,) = variants_of(read_runs([tmp_path / "s"]))
    assert variant.differences == ["data not at hand: its grid and samples are not checked"]
    small = Study(name="t", recipe="darcy", set={"data.store": str(darcy_store)}, seeds=[0])
    write_study(small, tmp_path / "t")
    (variant,) = variants_of(read_runs([tmp_path / "t"]))
    assert variant.differences == [
        "data generated, not the benchmark's files",
        "stride 2, not 5",
        "10 of 1000 training samples",
        "4 of 200 test samples",
        "9 x 9 points, not 85 x 85",
    ]
    whole: dict[str, Any] = {"data.store": str(full_stores["darcy"])}
    rows = [{"model.name": "geomano"}, {"model.name": "transolver", "training.lr": 1e-3}, {"model.name": "fno"}]
    study = Study.model_validate({"name": "u", "recipe": "darcy", "set": whole, "rows": rows, "seeds": [0, 1]})
    write_study(study, tmp_path / "u")
    report = make_report([tmp_path / "u"], tables=["main"], with_figures=False)
    measured = {row[0]: row[1:] for row in table(report, "main")}
    assert measured["GeoMaNO"] == ["**0.0036**", "**0.01050 ± 0.00071**", "2 of 2"]
    assert measured["Transolver"] == ["0.0057", "0.01250 ± 0.00071", "2 of 2"]
    assert measured["FNO"] == ["0.0108", "0.01450 ± 0.00071 †", "2 of 2"]
    assert measured["LSM"] == ["0.0065", "not run", "-"]
    assert len(measured) == 15
    (note,) = (note for note in notes(report, "main").splitlines() if note.startswith("†"))
    assert "FNO of the package neuraloperator" in note


def test_main_table_of_two_studies_has_both_problems(tmp_path: Path) -> None:
    for problem in ("darcy", "navier_stokes"):
        write_study(load_study(f"{problem}_main"), tmp_path / problem, problem)
    studies = [tmp_path / "darcy", tmp_path / "navier_stokes"]
    with pytest.raises(ConfigError, match="say where with --out"):
        write_report(studies)
    report = write_report(studies, tmp_path / "both", with_figures=False)
    (ours,) = (row for row in table(report, "main") if row[0] == "GeoMaNO")
    assert ours[1::3] == ["**0.0036**", "**0.0370**"]
    assert ours[3::3] == ["5 of 5", "5 of 5"]
    assert (tmp_path / "both" / "report.html").is_file()
    bounds = table(report, "error_bounds")
    assert bounds[0][:4] == ["Darcy flow", "GeoMaNO", "relative L2", "0.0036 ± 1.17e-04"]
    assert bounds[7][:4] == ["Navier-Stokes", "GeoMaNO", "relative L2", "0.0370 ± 3.40e-03"]


def test_efficiency_compares_the_costs_of_an_epoch_without_the_first(tmp_path: Path) -> None:
    study = load_study("efficiency")
    darcy = Study(**{**study.model_dump(), "rows": study.rows[:2]})
    write_study(darcy, tmp_path / "e")
    report = make_report([tmp_path / "e"], with_figures=False)
    transolver, ours, ratio = table(report, "efficiency_darcy")
    assert transolver[:3] == ["Transolver", "30.99", "**22.00 ± 1.58 †**"]
    assert [text.strip("*") for text in ours[3:7]] == ["1.17", "1.20 ± 0.16 †", "5.21", "512.00 ± 0.00 †"]
    assert ratio == ["GeoMaNO / Transolver", "0.77", "1.00", "0.50", "1.00", "0.12", "1.00", ""]
    assert "3 of 500 epochs" not in notes(report, "efficiency_darcy")  # a short run tells the time of an epoch
    assert "measured on: 1 x Quadro RTX 8000" in notes(report, "efficiency_darcy")


def test_costs_that_were_not_recorded_are_not_invented(tmp_path: Path) -> None:
    write_study(load_study("efficiency"), tmp_path / "e")
    for file in (tmp_path / "e").glob("*/metrics.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        kept = [{key: line[key] for key in ("epoch", "seconds", "train_loss", "test_rel_l2")} for line in lines]
        file.write_text("".join(json.dumps(line) + "\n" for line in kept))
    rows = table(make_report([tmp_path / "e"], with_figures=False), "efficiency_darcy")
    assert rows[0][4] == rows[0][6] == "not recorded"
    assert rows[2][2:] == ["1.00", "0.50", "-", "0.12", "-", ""]


def test_files_of_every_format(tmp_path: Path) -> None:
    axes = {"model.depth": [2, 4]}
    study = Study(name="odd_1", recipe="darcy", axes=axes, seeds=[0, 1], tables=["scalability"])
    write_study(study, tmp_path / "odd_1", failed={3: "a|b <script>alert(1)</script> 50% & $x_1$"})
    report = write_report([tmp_path / "odd_1"])
    names = {file.name for file in report.files}
    pictures = {f"{name}.{kind}" for name in ("scalability", "loss_curves") for kind in ("png", "pdf")}
    texts = {"report.md", "report.tex", "report.csv", "report_variants.csv", "report_tables.csv", "report.html"}
    assert names == texts | pictures
    out = tmp_path / "odd_1" / "report"
    assert (out / "scalability.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "scalability.pdf").read_bytes().startswith(b"%PDF")
    markdown = (out / "report.md").read_text()
    assert "| 2 | **0.01050 ± 0.00071 †** | 2 | 1,000 |" in markdown
    assert r"a\|b &lt;script>" in markdown
    latex = (out / "report.tex").read_text()
    assert r"2 & \textbf{0.01050 $\pm$ 0.00071 $\dagger$} & 2 & 1,000 \\" in latex
    assert r"50\% \& \$x\_1\$" in latex
    assert latex.count(r"\begin{longtable}") == latex.count(r"\end{longtable}") == 3
    rows = list(csv.DictReader((out / "report_tables.csv").open()))
    (cell,) = (r for r in rows if (r["table"], r["name"], r["column"]) == ("scalability_depth", "2", "rel-L2"))
    assert float(cell["value"]) == pytest.approx(0.0105)
    assert cell["best"] == "yes"
    page = (out / "report.html").read_text()
    assert "<script>alert" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert page.count("data:image/png;base64,") == 4  # light and dark
    assert any("no picture of predictions" in fact and "has no predictions.npz" in fact for fact in report.facts)


def test_csv_has_a_row_per_run_and_a_row_per_variant_with_plain_numbers(tmp_path: Path) -> None:
    axes: dict[str, list[Any]] = {"model.depth": [1, 2], "training.lr": [1e-3]}
    study = Study(name="s", recipe="darcy_smoke", axes=axes, seeds=[0, 1, 2])
    names = write_study(study, tmp_path / "s", failed={5: "it broke"})
    write_report([tmp_path / "s"], with_figures=False)
    runs = list(csv.DictReader((tmp_path / "s" / "report" / "report.csv").open()))
    assert [row["run"] for row in runs] == names
    first, last = runs[0], runs[-1]
    assert (first["seed"], first["model.depth"], float(first["training.lr"])) == ("0", "1", 1e-3)
    assert (float(first["rel_l2"]), int(first["parameters"]), int(first["epochs"])) == (0.01, 1000, 4)
    assert float(first["seconds_per_epoch"]) == float(first["train_seconds"]) / 4
    assert (last["state"], last["rel_l2"], last["parameters"], last["epochs"]) == ("failed", "", "", "4")
    one, two = csv.DictReader((tmp_path / "s" / "report" / "report_variants.csv").open())
    assert float(one["rel_l2_mean"]) == pytest.approx(0.011)
    assert float(one["rel_l2_std"]) == pytest.approx(0.001)
    assert (one["runs"], one["finished"], two["runs"], two["finished"]) == ("3", "3", "3", "2")
    assert (float(two["rel_l2_min"]), float(two["rel_l2_max"])) == pytest.approx((0.013, 0.014))
    for name, row in (("report.csv", first), ("report_variants.csv", one)):
        (line,) = (line for line in DOCUMENT.splitlines() if line.startswith(f"| `{name}`"))
        documented = line.rstrip(" |").rpartition("| ")[2]
        assert list(row) == documented.replace("the keys that vary", "model.depth, training.lr").split(", ")


def test_csv_of_runs_without_a_manifest_has_the_keys_that_differ(folders: Path) -> None:
    write_report([folders], with_figures=False)
    rows = list(csv.DictReader((folders / "report" / "report.csv").open()))
    assert [(row["model.depth"], row["seed"], row["rel_l2"]) for row in rows] == [
        ("1", "0", "0.1"),
        ("1", "1", "0.3"),
        ("2", "0", "0.25"),
        ("2", "1", ""),
    ]


@pytest.mark.parametrize("store", ["darcy_store", "navier_stokes_store"])
@pytest.mark.slow
def test_report_of_real_runs_has_pictures(
    store: str, tiny_recipe: Recipe, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    content = tiny_recipe.model_dump()
    content["data"]["store"], content["training"]["epochs"] = request.getfixturevalue(store), 1
    for seed in (0, 1):
        train(with_changes(Recipe.model_validate(content), seed), RunFolder(tmp_path / "study" / f"seed-{seed}_x"))
    report = write_report([tmp_path / "study"])
    assert [picture.name for picture in report.pictures] == ["loss_curves", "prediction"]
    result = json.loads((tmp_path / "study" / "seed-0_x" / "result.json").read_text())
    assert variants_of(read_runs([tmp_path / "study"]))[0].error.values[0] == result["rel_l2"]
    assert "![Training](loss_curves.png)" in (tmp_path / "study" / "report" / "report.md").read_text()


@pytest.mark.slow
def test_thousand_runs_are_reported_in_seconds(tmp_path: Path) -> None:
    depths = list(range(1, 201))
    study = Study(name="s", recipe="darcy_smoke", axes={"model.depth": depths}, seeds=[0, 1, 2, 3, 4])
    write_study(study, tmp_path / "s", epochs=20, failed={500: "it broke"})
    write_study(Study(name="t", recipe="darcy_smoke", seeds=[0]), tmp_path / "t")
    write_report([tmp_path / "t"])  # matplotlib reads its fonts once in a process
    found = []
    # About 3 s of one core; what grows with the square of the number of runs takes minutes.
    assert seconds_of(lambda: found.append(write_report([tmp_path / "s"]))) < 30
    (report,) = found
    assert report.facts[0] == "999 of 1000 runs are done; 1 failed: listed at the end"
    assert len(table(report, "variants")) == 200


def test_study_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GeomanoError, match="no runs in this folder"):
        make_report([tmp_path])


def test_scalability_of_a_study_without_a_number_that_varies_is_an_error(tmp_path: Path) -> None:
    write_study(Study(name="s", recipe="darcy", seeds=[0]), tmp_path / "s")
    with pytest.raises(ConfigError, match="needs a study in which one number varies, and nothing else; leave it out"):
        make_report([tmp_path / "s"], tables=["scalability"])


def test_study_that_names_a_table_it_cannot_have_is_reported_without_it(tmp_path: Path) -> None:
    axes = {"model.depth": [1, 2], "model.dstate": [4, 8]}
    write_study(Study(name="s", recipe="darcy", axes=axes, seeds=[0], tables=["scalability"]), tmp_path / "s")
    report = make_report([tmp_path / "s"], with_figures=False)
    assert "there is no scalability table: a scalability curve needs a study in which" in " ".join(report.facts)
    assert len(table(report, "variants")) == 4


def test_studies_that_vary_the_same_key_have_a_curve_each_and_one_without_results_has_none(tmp_path: Path) -> None:
    keys = {"axes": {"model.depth": [1, 2]}, "seeds": [0], "tables": ["scalability"]}
    for name, recipe in (("a", "darcy"), ("b", "navier_stokes")):
        write_study(Study.model_validate({"name": name, "recipe": recipe, **keys}), tmp_path / name)
    failed = dict.fromkeys(range(2), "it broke")
    write_study(Study.model_validate({"name": "c", "recipe": "darcy", **keys}), tmp_path / "c", failed=failed)
    report = write_report([tmp_path / name for name in "abc"], tmp_path / "out")
    names = [one.name for one in report.tables if one.name.startswith("scalability")]
    assert names == ["scalability_depth_a", "scalability_depth_b", "scalability_depth_c"]
    assert (tmp_path / "out" / "scalability.png").is_file()


def test_studies_in_folders_of_the_same_name_are_both_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(name="demo", recipe="darcy", seeds=[0, 1])
    write_study(study, tmp_path / "a" / "demo")
    write_study(study, tmp_path / "b" / "demo", failed={1: "it broke"})
    monkeypatch.chdir(tmp_path)
    report = make_report([Path("a/demo"), Path("b/demo")], with_figures=False)
    assert report.title == "a/demo, b/demo"
    assert [row[0] for row in table(report, "variants")] == ["a/demo: darcy", "b/demo: darcy"]
    assert [variant.error.n for variant in report.variants] == [2, 1]
    monkeypatch.chdir(tmp_path / "a" / "demo")
    assert {run.study for run in read_runs([Path()])} == {"demo"}


def test_runs_that_two_launches_named_otherwise_count_once_for_each_seed(tmp_path: Path) -> None:
    """dstate 16 is what the recipe says anyway."""
    first = Study(name="s", recipe="darcy", axes={"model.depth": [1]}, seeds=[0, 1])
    write_study(first, tmp_path / "s")
    write_study(Study(name="s", recipe="darcy", axes={"model.depth": [1], "model.dstate": [16]}), tmp_path / "s")
    (variant,) = variants_of(read_runs([tmp_path / "s"]))
    assert sorted(run.recipe.training.seed for run in variant.runs) == [0, 1, 2, 3, 4]
    assert variant.error.n == 5
    write_report([tmp_path / "s"], with_figures=False)
    rows = list(csv.DictReader((tmp_path / "s" / "report" / "report.csv").open()))
    assert {row["run"] for row in rows} == {folder.path.name for folder in run_folders(tmp_path / "s")}
    assert len(rows) == 7
    (row,) = csv.DictReader((tmp_path / "s" / "report" / "report_variants.csv").open())
    assert (row["runs"], row["finished"]) == ("5", "5")


def test_single_number_is_not_the_best_of_a_column() -> None:
    one, two = [Cell("a", 1.0)], [Cell("b", 2.0)]
    assert not Table("t", "t", ["x"], [one, [Cell("-")]]).with_best([0]).rows[0][0].best
    assert [row[0].best for row in Table("t", "t", ["x"], [two, one]).with_best([0]).rows] == [False, True]


def test_number_that_is_not_finite_is_never_the_best() -> None:
    rows = [[Cell("a", value)] for value in (math.nan, 2.0, 1.0, -math.inf)]
    assert [row[0].best for row in Table("t", "t", ["x"], rows).with_best([0]).rows] == [False, False, True, False]


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_diverged_runs_are_named_and_the_others_reported(error: float, tmp_path: Path) -> None:
    study = Study(
        name="s", recipe="darcy", axes={"model.depth": [1, 2, 4]}, seeds=[0, 1], tables=["main", "scalability"]
    )
    names = write_study(study, tmp_path / "s")
    for name in names[:1] + names[4:]:
        run = RunFolder(tmp_path / "s" / name)
        run.write_result({**(run.result() or {}), "rel_l2": error})
        run.metrics_file.write_text(json.dumps({**run.metrics()[-1], "train_loss": error, "test_rel_l2": error}) + "\n")
    for name in names:  # those of the best run are drawn
        Predictions("steady", *np.ones((3, 1, 8, 8, 1))).write(RunFolder(tmp_path / "s" / name).predictions_file)
    report = write_report([tmp_path / "s"])
    told = "runs with an error that is not finite, so that no mean with it is: " + ", ".join(
        f"s/{name}" for name in names[:1] + names[4:]
    )
    assert told in report.facts
    assert [row[1] for row in table(report, "scalability_depth")] == [
        f"{error} ± nan †",
        "0.01250 ± 0.00071 †",
        f"{error} ± nan †",
    ]
    (picture,) = (picture for picture in report.pictures if picture.name == "prediction")
    assert picture.note == f"s/{names[1]}, the best run: test rel-L2 0.01100"
    one, _, three = csv.DictReader((tmp_path / "s" / "report" / "report_variants.csv").open())
    assert (one["rel_l2_std"], one["rel_l2_min"], one["rel_l2_max"], three["rel_l2_min"]) == (
        "nan",
        "0.011",
        "0.011",
        "",
    )
    assert f'data-value="{error}"' not in (tmp_path / "s" / "report" / "report.html").read_text()
    for name in names:
        run = RunFolder(tmp_path / "s" / name)
        run.write_result({**(run.result() or {}), "rel_l2": error})
    report = write_report([tmp_path / "s"])
    assert "no picture of predictions: no run of Darcy flow has a finite error" in report.facts
    assert [picture.name for picture in report.pictures] == ["loss_curves"]


def test_curves_are_those_of_the_smallest_finite_errors(tmp_path: Path) -> None:
    depths = list(range(1, MOST_CURVES + 3))
    names = write_study(Study(name="s", recipe="darcy", axes={"model.depth": depths}, seeds=[0]), tmp_path / "s")
    for name in names[:2]:
        run = RunFolder(tmp_path / "s" / name)
        run.write_result({**(run.result() or {}), "rel_l2": math.nan})
    with pytest.MonkeyPatch.context() as patch:
        drawn: list[list[str]] = []
        patch.setattr(study_report, "loss_curves", lambda variants: drawn.append([v.label for v in variants]))
        report = make_report([tmp_path / "s"])
        (curves,) = (picture for picture in report.pictures if picture.name == "loss_curves")
        curves.draw()
    assert drawn == [[f"depth {depth}" for depth in depths[2:]]]


def test_estimate_says_what_it_is_taken_from(tmp_path: Path) -> None:
    runs = plan(load_study("darcy_main"))
    lines = estimate(runs, tmp_path / "none", load_profile(None, {"time": "120"}))
    assert lines[:2] == [
        "5 runs to start, 2500 epochs in all, 1 node each",
        "estimate: 16.7 node hours, 3.3 hours for the longest run",
    ]
    assert (
        lines[2] == "  5 runs: 23.98 s an epoch, the paper's GeoMaNO on darcy on one Quadro RTX 8000; your GPU differs"
    )
    assert lines[3] == "time limits allow 10.0 node hours, if no run is started more than once"
    write_study(load_study("darcy_main"), tmp_path / "s")
    (line,) = (line for line in estimate(runs, tmp_path / "s", None) if line.startswith("estimate"))
    assert line == "estimate: 15.3 node hours, 3.1 hours for the longest run"
    assert estimate(plan(load_study("demo")), tmp_path / "none", None)[1] == "estimate: none"
