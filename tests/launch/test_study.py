import re
from pathlib import Path

import pytest

from geomano_hpc.config import load_recipe
from geomano_hpc.errors import ConfigError
from geomano_hpc.launch import Study, load_study, plan, study_names, with_overrides
from geomano_hpc.launch.run import keep_plan
from geomano_hpc.launch.study import digest
from geomano_hpc.models.transolver import TransolverConfig
from geomano_hpc.report.published import ABLATION
from tests.support.untraced import seconds_of


def test_main_studies_repeat_the_papers_recipes_with_five_seeds() -> None:
    for name in ("darcy", "navier_stokes"):
        study = load_study(f"{name}_main")
        assert (study.recipe, study.seeds) == (name, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("name", study_names())
def test_every_shipped_study_plans_and_says_what_it_is(name: str) -> None:
    study = load_study(name)
    runs = plan(study)
    assert (study.name, len({run.name for run in runs})) == (name, len(runs))
    assert study.about


@pytest.mark.parametrize("problem", ABLATION)
@pytest.mark.parametrize("size", ["", "_smoke"])
def test_ablations_have_each_row_of_the_papers_table_in_its_order(problem: str, size: str) -> None:
    study = load_study(f"{problem}_ablation{size}")
    models = [run.recipe.model.model_dump() for run in plan(study) if run.recipe.training.seed == 0]
    rows = [(model["kind"], model["positional_encoding"], model["correction"]) for model in models]
    assert rows == list(ABLATION[problem])


def test_every_study_of_the_paper_has_a_smoke_version_with_the_same_tables_that_makes_its_own_data() -> None:
    whole = [name for name in study_names() if f"{name}_smoke" in study_names()]
    assert whole == [
        *("darcy_ablation", "darcy_main", "efficiency", "navier_stokes_ablation", "navier_stokes_main"),
        *("scale_depth", "scale_dstate", "scale_embedding"),
    ]
    for name in whole:
        smoke = load_study(f"{name}_smoke")
        assert smoke.tables == load_study(name).tables
        assert all(run.recipe.data.generate and run.recipe.training.epochs <= 2 for run in plan(smoke))


def test_efficiency_trains_both_models_on_both_problems_as_published() -> None:
    runs = [run for run in plan(load_study("efficiency")) if run.recipe.training.seed == 0]
    found = {(run.recipe.name, run.recipe.model.name): run.recipe.model for run in runs}
    assert len(runs) == 4
    assert found["darcy", "geomano"] == load_recipe("darcy").model
    assert found["navier_stokes", "geomano"] == load_recipe("navier_stokes").model
    assert found["darcy", "transolver"] == TransolverConfig()
    assert found["navier_stokes", "transolver"] == TransolverConfig(embedding=256, slices=32)


def test_rows_zip_and_axes_combine() -> None:
    study = Study(
        name="s",
        recipe="darcy",
        rows=[{"model.kind": "1d"}, {"model.kind": "2d", "model.correction": "none"}],
        zip={"model.depth": [1, 2], "model.embedding": [8, 16]},
        axes={"model.dstate": [4, 8]},
        seeds=[0],
    )
    models = [run.recipe.model.model_dump() for run in plan(study)]
    found = [(m["kind"], m["correction"], m["depth"], m["embedding"], m["dstate"]) for m in models]
    assert found == [
        (*row, *zipped, dstate)
        for row in (("1d", "0011"), ("2d", "none"))
        for zipped in ((1, 8), (2, 16))
        for dstate in (4, 8)
    ]
    assert plan(study)[-1].name.startswith("kind-2d_correction-none_depth-2_embedding-16_dstate-8_seed-0_")


def test_study_can_be_like_another_with_changes(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("like: demo_tiny\nname: mine\nset: {training.epochs: 1}\nseeds: [3]\n")
    (run,) = plan(load_study(str(mine)))
    assert (run.recipe.training.epochs, run.recipe.training.seed, run.recipe.data.train_samples) == (1, 3, 16)


@pytest.mark.parametrize("base", ["like: demo", "recipe: darcy_smoke"])
def test_empty_set_of_a_study_changes_nothing(base: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"{base}\nname: mine\nset:\n")
    without = tmp_path / "without.yaml"
    without.write_text(f"{base}\nname: mine\n")
    assert load_study(str(mine)) == load_study(str(without))


def test_name_of_a_run_does_not_change_when_a_later_version_adds_a_key_or_orders_them_otherwise() -> None:
    """What a recipe says beside the defaults, as it was when this was written: another digest repeats finished runs."""
    assert plan(load_study("darcy_main"))[0].name == "seed-0_ff9ae84b"
    assert digest(load_recipe("darcy", ["model.name=fno"])) != digest(load_recipe("darcy", ["model.name=uno"]))


def test_name_of_a_run_is_a_folder_name_for_any_value() -> None:
    study = Study(name="s", recipe="darcy", axes={"data.store": ["/a b/ü" + "x" * 300, "y" * 300]}, seeds=[12])
    for run in plan(study):
        assert len(run.name) < 200
        assert re.fullmatch(r"[A-Za-z0-9_.+-]+_?seed-12_[0-9a-f]{8}", run.name)


def test_grid_is_every_combination_with_every_seed() -> None:
    study = Study(name="s", recipe="darcy", axes={"model.depth": [2, 4], "model.dstate": ["8", "16"]}, seeds=[0, 7])
    runs = plan(with_overrides(study, ["training.epochs=3"], [], None, None))
    assert len(runs) == 8
    models = [(run.recipe.model.model_dump(), run.recipe.training.seed) for run in runs]
    assert {(model["depth"], model["dstate"], seed) for model, seed in models} == {
        (depth, dstate, seed) for depth in (2, 4) for dstate in (8, 16) for seed in (0, 7)
    }
    assert all(run.recipe.training.epochs == 3 for run in runs)
    assert runs[0].name.startswith("depth-2_dstate-8_seed-0_")


def test_name_of_a_run_changes_with_its_recipe_and_with_nothing_else() -> None:
    study = Study(name="s", recipe="darcy", seeds=[0])
    (one,), (same,) = plan(study), plan(study)
    (other,) = plan(with_overrides(study, ["training.lr=1e-3"], [], None, None))
    assert one.name == same.name != other.name


def test_recipe_makes_a_study_of_five_seeds(tmp_path: Path) -> None:
    assert load_study("darcy_smoke").seeds == [0, 1, 2, 3, 4]
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\ndata: {store: data/mine.zarr}\n")
    assert plan(load_study(str(mine)))[0].recipe.name == "mine"
    spaced = mine.rename(tmp_path / "my recipe.yaml")
    with pytest.raises(
        ConfigError, match=r"my recipe.yaml gives the study its name; rename the file: .*'my recipe'\)$"
    ):
        load_study(str(spaced))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: s\nrecipe: darcy\nsedes: [1]\n", "unknown key sedes; did you mean 'seeds'"),
        ("name: s\nrecipe: [", "not valid YAML"),
        ("name: s\nrecipe: darcy\nseeds: []\n", "seeds"),
        ("name: s\nrecipe: darcy\nseeds: [1]\nseeds: [2]\n", "the key seeds stands twice .line 4"),
        ("name: s\nrecipe: darcy\naxes: {model.depth: []}\n", "model.depth has no values"),
        ("name: s\nrecipe: darcy\nrows: [{}]\n", "a row is empty"),
        ("name: s\nrecipe: darcy\nset: {recipe: darcy}\n", "recipe is a key of the study itself"),
        ("name: s\nrecipe: darcy\ntables: [mian]\n", "tables"),
        ("name: s\nrecipe: darcy\nzip: {model.depth: [1], model.dstate: [1, 2]}\n", "zip takes lists of equal length"),
        ("name: s\nrecipe: darcy\nzip: {model.depth: [1]}\naxes: {model.depth: [2]}\n", "varied twice"),
        ("name: s\nlike: darcy\n", "like: darcy is a recipe; name it with recipe: darcy"),
        ("name: s\nlike: nothing\n", "no study, recipe or file 'nothing'"),
        ("name: s\nlike: demo\nset: [a]\n", r"set is a mapping, such as {model.depth: 4} \(found \['a'\]\)"),
        ("name: s\nrecipe: darcy\nset: 3\n", r"set is a mapping, such as {model.depth: 4} \(found 3\)"),
    ],
)
def test_broken_study_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_study(str(file))
    assert str(file) in str(caught.value) or "nothing" in text


def test_studies_that_are_like_each_other_are_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(f"name: one\nlike: {two}\n")
    two.write_text(f"name: two\nlike: {one}\n")
    with pytest.raises(ConfigError, match="goes round in a circle"):
        load_study(str(one))


def test_unknown_study_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no study, recipe or file 'x'.*darcy_main"):
        load_study("x")


def test_axis_with_an_unknown_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"study s: unknown key model.dept; did you mean 'depth'"):
        plan(Study(name="s", recipe="darcy", axes={"model.dept": [1]}))


def test_command_line_wins_over_the_studys_own_settings() -> None:
    study = with_overrides(load_study("demo_tiny"), ["training.epochs=7"], ["training.clip=null,0.1"], 2, "mine")
    runs = plan(study)
    assert (study.name, len(runs)) == ("mine", 4)
    assert {run.recipe.training.epochs for run in runs} == {7}
    assert {run.recipe.training.clip for run in runs} == {None, 0.1}
    assert study.set["training.epochs"] == "7"  # kept in study.yaml


@pytest.mark.parametrize(
    ("overrides", "axes", "name", "message"),
    [
        (["training.seed=3"], [], None, r"training\.seed is varied by the study's seeds"),
        ([], ["training.seed=3,4"], None, r"training\.seed is varied by the study's seeds"),
        (["model.depth=3"], [], None, r"model\.depth is both set and varied"),
        (["model.dstate=3"], ["model.dstate=2,4"], None, r"model\.dstate is both set and varied"),
        ([], ["model.depth"], None, "write it as key=value,value"),
        ([], ["model.depth=2,2"], None, "two of its runs are the same"),
        ([], [], "../elsewhere", "name: String should match pattern"),
    ],
)
def test_command_line_that_contradicts_the_study_is_refused(
    overrides: list[str], axes: list[str], name: str | None, message: str
) -> None:
    study = Study(name="s", recipe="darcy", axes={"model.depth": [1, 2]})
    with pytest.raises(ConfigError, match=message):
        plan(with_overrides(study, overrides, axes, None, name))


def test_another_model_starts_from_its_own_defaults_in_every_place_where_it_is_named() -> None:
    """Keys of GeoMaNO in the recipe mean nothing to Transolver; the order of the changes does not matter."""
    study = Study(name="s", recipe="darcy", set={"model.depth": 2}, axes={"model.name": ["geomano", "transolver"]})
    ours, theirs = plan(study)[0].recipe, plan(study)[-1].recipe
    assert ours.model == load_recipe("darcy", ["model.depth=2"]).model
    assert theirs.model == TransolverConfig(depth=2)
    assert theirs.training.lr == ours.training.lr
    assert plan(study)[-1].name.startswith("name-transolver_seed-4_")


def test_whole_models_can_be_an_axis() -> None:
    models = [{"name": "geomano", "depth": 1}, {"name": "geomano", "depth": 2}, {"name": "fno"}]
    runs = plan(Study(name="s", recipe="darcy", axes={"model": models}, seeds=[0]))
    assert [run.name.rpartition("_")[0] for run in runs] == ["model-geomano_seed-0"] * 2 + ["model-fno_seed-0"]
    assert len({run.name for run in runs}) == 3


def test_thousand_runs_are_planned_in_seconds(tmp_path: Path, darcy_store: Path) -> None:
    store = {"data.store": str(darcy_store), "data.generate": None}
    axes = {"model.depth": list(range(1, 51)), "model.dstate": [2, 4, 8, 16]}
    study = Study(name="s", recipe="darcy_smoke", set=store, axes=axes, seeds=[0, 1, 2, 3, 4])
    found = []
    # About 2 s of one core; what grows with the square of the number of runs takes minutes.
    assert seconds_of(lambda: found.append(keep_plan(study, plan(study), tmp_path / "s", {}))) < 30
    (made,) = found
    made.claim.release()
    assert (len(made.to_start), len(made.finished), len(made.active)) == (1000, 0, 0)
