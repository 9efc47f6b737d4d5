from geomano_hpc.config import load_recipe
from geomano_hpc.report.published import ABLATION, EFFICIENCY, MAIN, best_row, published, published_for, published_name


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


def test_only_the_configuration_of_the_main_results_is_geomano_in_the_main_table() -> None:
    for problem in ABLATION:
        model = load_recipe(problem).model.model_dump()
        assert published_name(problem, model) == "GeoMaNO"
        assert (model["kind"], model["positional_encoding"], model["correction"]) == best_row(problem)
        assert published_name(problem, {**model, "correction": "0001"}) is None
    assert published_name("burgers", load_recipe("darcy").model.model_dump()) is None


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
