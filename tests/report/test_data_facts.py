"""What a report knows of the data of its runs, and that only the benchmark's is compared with the paper."""

import csv
import shutil
from pathlib import Path

import pytest

from geomano_hpc.config import DataConfig, GenerateConfig
from geomano_hpc.launch import Study
from geomano_hpc.report.data_facts import DataFacts, data_facts
from geomano_hpc.report.runs import Variant, read_runs, variants_of
from geomano_hpc.report.study_report import make_report, write_report
from geomano_hpc.training.records.run_folder import RunFolder
from tests.report.conftest import write_card, write_full_store
from tests.support.written_runs import write_study


def one_variant(folder: Path, recipe: str, store: Path, problem: str, **told: object) -> Variant:
    """A finished run of the recipe of the paper on this store, whose result says more."""
    (name,) = write_study(Study(name="s", recipe=recipe, set={"data.store": str(store)}, seeds=[0]), folder, problem)
    run = RunFolder(folder / name)
    run.write_result({**(run.result() or {}), **told})
    (variant,) = variants_of(read_runs([folder]))
    return variant


def test_facts_of_a_generated_store(navier_stokes_store: Path) -> None:
    facts = data_facts(DataConfig(store=navier_stokes_store, train_samples=2))
    assert (facts.problem, facts.protocol, facts.at_hand) == ("navier_stokes", "navier_stokes", True)
    assert (facts.grid, facts.stride, facts.frames) == ((8, 8), 2, (10, 10))
    assert (facts.train_samples, facts.validation_samples, facts.test_samples) == (2, 0, 1)
    assert (facts.generated, facts.viscosity, facts.drawn) == (True, 1e-3, False)


def test_more_samples_than_there_are_cannot_be_used(darcy_store: Path) -> None:
    facts = data_facts(DataConfig(store=darcy_store, train_samples=1000, test_samples=200))
    assert (facts.train_samples, facts.test_samples) == (10, 4)


def test_facts_of_public_files(full_stores: dict[str, Path], tmp_path: Path) -> None:
    facts = data_facts(DataConfig(store=full_stores["navier_stokes"]))
    assert (facts.generated, facts.files) == (False, ("NavierStokes_V1e-5_N1200_T20.mat",))
    assert (facts.viscosity, facts.grid, facts.stride) == (1e-5, (64, 64), 1)
    other = write_full_store(tmp_path / "o.zarr", "navier_stokes", files=["NavierStokes_V1e-3_N5000_T50.mat"])
    assert data_facts(DataConfig(store=other)).viscosity == 1e-3


def test_facts_of_data_that_is_yet_to_be_made(tmp_path: Path) -> None:
    made = GenerateConfig(problem="darcy", train_samples=1000, test_samples=200, grid=421, stride=5)
    facts = data_facts(DataConfig(store=tmp_path / "none.zarr", generate=made, test_samples=5))
    assert (facts.grid, facts.train_samples, facts.test_samples, facts.generated) == ((85, 85), 1000, 5, True)


def test_validation_samples_and_drawn_splits_of_a_store_are_known(tmp_path: Path) -> None:
    store = write_full_store(tmp_path / "darcy.zarr", "darcy")
    origin = {"sources": [], "stride": 5, "settings": {"splits": {"train": 900, "seed": 1}}}
    write_card(store, splits={"train": 900, "validation": 100, "test": 200}, provenance=origin)
    facts = data_facts(DataConfig(store=store))
    assert (facts.train_samples, facts.validation_samples, facts.test_samples) == (900, 100, 200)
    assert (facts.drawn, facts.files) == (True, None)


def test_what_a_run_says_of_its_data_counts(full_stores: dict[str, Path], tmp_path: Path) -> None:
    variant = one_variant(tmp_path / "a", "darcy", full_stores["darcy"], "darcy", test_samples=5)
    assert variant.differences == ["5 of 200 test samples"]
    variant = one_variant(tmp_path / "b", "darcy", tmp_path / "gone.zarr", "darcy", test_samples=5)
    assert variant.differences == [
        "5 of 200 test samples",
        "data not at hand: its grid and samples are not checked",
    ]


def test_store_of_another_problem_than_the_run_had_is_not_its_data(navier_stokes_store: Path, tmp_path: Path) -> None:
    variant = one_variant(tmp_path / "a", "darcy", navier_stokes_store, "darcy")
    assert variant.benchmark == "darcy"
    assert variant.differences == ["data not at hand: its grid and samples are not checked"]


@pytest.mark.parametrize("name", ["darcy", "my_flow"])
def test_own_problem_has_neither_a_published_number_nor_a_mark_whatever_its_name(name: str, tmp_path: Path) -> None:
    store = write_full_store(tmp_path / "own.zarr", "darcy")
    write_card(store, problem=name, protocol=None)
    variant = one_variant(tmp_path / "s", "darcy", store, name)
    assert (variant.problem, variant.benchmark) == (name, None)
    report = write_report([tmp_path / "s"], tables=["main"], with_figures=False)
    main, variants = report.tables
    (row,) = variants.rows
    assert [cell.text for cell in row[:3]] == ["darcy", "0.01000", "-"]
    assert {cell.text for cells in main.rows for cell in cells[2::3]} == {"not run"}
    assert "†" not in " ".join(note for table in report.tables for note in table.notes)
    (line,) = csv.DictReader((tmp_path / "s" / "report" / "report_variants.csv").open())
    assert (line["problem"], line["not_as_in_the_paper"]) == (name, "")
    shutil.rmtree(store)
    variant = one_variant(tmp_path / "t", "darcy", store, name, protocol=None)
    assert (variant.problem, variant.benchmark, variant.differences) == (name, None, [])


def test_problem_that_the_paper_does_not_have_is_not_marked(tmp_path: Path) -> None:
    variant = one_variant(tmp_path / "s", "darcy", tmp_path / "gone.zarr", "burgers")
    assert (variant.benchmark, variant.differences, variant.cost_differences) == (None, [], [])
    report = make_report([tmp_path / "s"], with_figures=False)
    assert report.tables[0].rows[0][1].text == "0.01000"


def test_results_without_a_problem_leave_what_the_store_says() -> None:
    facts = DataFacts("darcy", "darcy", at_hand=True, test_samples=200)
    assert facts.with_results([{"rel_l2": 0.1}]) == facts
