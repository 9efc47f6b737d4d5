import json
from pathlib import Path

import pytest

from geomano_hpc.config import Recipe, load_recipe
from geomano_hpc.errors import GeomanoError
from geomano_hpc.report.published import ABLATION, EFFICIENCY, MAIN, published, published_for
from geomano_hpc.report.study_report import write_report
from geomano_hpc.report.table import make_table
from geomano_hpc.training.loop import train
from geomano_hpc.training.run_folder import RunFolder


def with_changes(recipe: Recipe, seed: int, depth: int = 1) -> Recipe:
    content = recipe.model_dump()
    content["training"]["seed"], content["model"]["depth"] = seed, depth
    return Recipe.model_validate(content)


@pytest.fixture
def study(tiny_recipe: Recipe, tmp_path: Path) -> Path:
    """Two depths with two seeds each; one of the runs is not finished."""
    measured: dict[int, list[float | None]] = {1: [0.1, 0.3], 2: [0.2, None]}
    for depth, errors in measured.items():
        for seed, error in enumerate(errors):
            folder = RunFolder(tmp_path / "study" / f"depth-{depth}_seed-{seed}")
            folder.write_recipe(with_changes(tiny_recipe, seed, depth))
            if error is not None:
                folder.write_result({"rel_l2": error, "problem": "darcy", "parameters": 10 * depth})
    return tmp_path / "study"


def test_table_has_mean_and_deviation_over_seeds_for_each_variant(study: Path) -> None:
    one, two = make_table(study).rows
    assert (one.variant, len(one.errors)) == ("model.depth 1", 2)
    assert one.mean == pytest.approx(0.2)
    assert one.deviation == pytest.approx(0.2**0.5 / 10**0.5)  # sample deviation of 0.1 and 0.3
    assert two.in_words() == "0.20000"  # one seed has no deviation
    assert two.unfinished == ["depth-2_seed-1"]


def test_markdown_shows_what_was_not_run_and_what_was_published(study: Path) -> None:
    text = make_table(study).to_markdown()
    assert "| model.depth 1 | 0.20000 ± 0.14142 | - | 2 | - | 10 | - |" in text
    assert "depth-2_seed-1" in text
    assert "GeoMaNO 0.0036 ± 1.2e-04, Transolver 0.0057, LSM 0.0065" in text
    assert all(f"{model} {errors[1]:.4f}" in text for model, errors in MAIN.items())
    assert "Transolver 30.99 s to train, 2.33 s to infer, 42.55 MB, GeoMaNO 23.98 s" in text


def test_all_fourteen_baselines_are_there() -> None:
    assert len(MAIN) == 15
    assert published("navier_stokes")["Transolver"] == 0.09
    assert published("darcy")["GeoMaNO"] == 0.0036
    assert published("burgers") == {}


def test_published_number_belongs_to_the_configuration() -> None:
    model = load_recipe("darcy").model.model_dump()
    assert published_for("darcy", model) == 0.00362
    assert published_for("darcy", {**model, "kind": "1d", "correction": "learnable"}) == 0.00386
    assert published_for("darcy", {**model, "orders": "corners"}) is None
    assert published_for("navier_stokes", load_recipe("navier_stokes").model.model_dump()) == 0.03701
    assert published_for("darcy", load_recipe("darcy", ["model.name=uno"]).model.model_dump()) == 0.0113
    assert published_for("burgers", model) is None
    assert published_for("darcy", {**model, "depth": 2}) is None


def test_tables_of_the_paper_agree_with_each_other() -> None:
    """The best rows of the ablation are the main results; the gains are those that the text names."""
    assert {problem: len(rows) for problem, rows in ABLATION.items()} == {"darcy": 12, "navier_stokes": 12}
    for column, problem in enumerate(("navier_stokes", "darcy")):
        assert round(min(ABLATION[problem].values()), 4) == MAIN["GeoMaNO"][column]
    assert round(1 - MAIN["GeoMaNO"][0] / MAIN["Transolver"][0], 3) == 0.589
    assert round(1 - MAIN["GeoMaNO"][1] / MAIN["Transolver"][1], 3) == 0.368
    gain = {
        (problem, what): round(1 - rows["GeoMaNO"][what][0] / rows["Transolver"][what][0], 3)
        for problem, rows in EFFICIENCY.items()
        for what in ("train", "infer", "memory")
    }
    assert gain["darcy", "infer"] == 0.498
    assert gain["navier_stokes", "memory"] == 0.233  # so 91.85, and not the 5.21 of the error-bound table


@pytest.mark.parametrize("store", ["darcy_store", "navier_stokes_store"])
def test_report_of_real_runs_has_pictures(
    store: str, tiny_recipe: Recipe, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    content = tiny_recipe.model_dump()
    content["data"]["store"], content["training"]["epochs"] = request.getfixturevalue(store), 1
    for seed in (0, 1):
        train(with_changes(Recipe.model_validate(content), seed), RunFolder(tmp_path / "study" / f"seed-{seed}_x"))
    report = write_report(tmp_path / "study")
    assert [file.name for file in report.files] == ["report.md", "loss_curves.png", "prediction.png"]
    for file in report.files[1:]:
        assert file.read_bytes().startswith(b"\x89PNG")
        assert f"]({file.name})" in report.files[0].read_text()
    result = json.loads((tmp_path / "study" / "seed-0_x" / "result.json").read_text())
    assert report.table.rows[0].errors[0] == result["rel_l2"]


def test_study_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GeomanoError, match="no runs in this folder"):
        make_table(tmp_path)
