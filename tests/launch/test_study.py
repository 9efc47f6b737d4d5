from pathlib import Path

import pytest

from geomano_hpc.config import TransolverConfig, load_recipe
from geomano_hpc.errors import ConfigError
from geomano_hpc.launch import Study, load_study, plan, study_names, with_overrides


def test_main_studies_repeat_the_papers_recipes_with_five_seeds() -> None:
    for name in ("darcy", "navier_stokes"):
        study = load_study(f"{name}_main")
        assert (study.recipe, study.seeds) == (name, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("name", study_names())
def test_every_shipped_study_plans(name: str) -> None:
    runs = plan(load_study(name))
    assert len({run.name for run in runs}) == len(runs) == 5


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: s\nrecipe: darcy\nsedes: [1]\n", "unknown key sedes; did you mean 'seeds'"),
        ("name: s\nrecipe: [", "not valid YAML"),
        ("name: s\nrecipe: darcy\nseeds: []\n", "seeds"),
    ],
)
def test_broken_study_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_study(str(file))
    assert str(file) in str(caught.value)


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
