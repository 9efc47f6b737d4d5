from pathlib import Path

import pytest

from geomano_hpc.config import load_recipe, recipe_from_mapping, recipe_names, to_yaml
from geomano_hpc.errors import ConfigError
from geomano_hpc.models.geomano import GeomanoConfig
from geomano_hpc.models.transolver import TransolverConfig


def test_paper_recipes_hold_the_papers_tables() -> None:
    """Tables "Training configurations" and "Model configurations"."""
    darcy, navier_stokes = load_recipe("darcy"), load_recipe("navier_stokes")
    assert isinstance(darcy.model, GeomanoConfig)
    assert isinstance(navier_stokes.model, GeomanoConfig)
    for recipe in (darcy, navier_stokes):
        assert isinstance(recipe.model, GeomanoConfig)
        assert (recipe.model.depth, recipe.model.dstate, recipe.model.expand) == (8, 16, 1)
        assert (recipe.training.epochs, recipe.training.lr) == (500, 3e-4)
        assert (recipe.training.optimizer, recipe.training.scheduler) == ("adamw", "onecycle")
        assert recipe.model.encoder == "pointwise"
        assert recipe.model.orders == "paper"
    assert (darcy.model.embedding, navier_stokes.model.embedding) == (64, 256)
    assert (darcy.training.batch_size, navier_stokes.training.batch_size) == (4, 2)
    assert (darcy.loss.gradient_weight, navier_stokes.loss.gradient_weight) == (0.1, 0.0)
    # best rows of the ablation tables
    assert (darcy.model.kind, darcy.model.correction, darcy.model.positional_encoding) == ("2d", "0011", False)
    assert (navier_stokes.model.kind, navier_stokes.model.correction) == ("1d", "learnable")
    assert navier_stokes.model.positional_encoding
    # the benchmark's
    assert (darcy.training.clip, darcy.training.weight_decay) == (0.1, 1e-5)
    assert (navier_stokes.training.clip, navier_stokes.training.weight_decay) == (None, 1e-5)


@pytest.mark.parametrize("name", recipe_names())
def test_resolved_recipe_reads_back_equal(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    file = tmp_path / "recipe.yaml"
    file.write_text(to_yaml(recipe))
    assert load_recipe(str(file)) == recipe


def test_section_as_a_change_leaves_its_other_keys_alone() -> None:
    wanted = load_recipe("darcy_smoke", ["training.epochs=1", "model.depth=1"])
    assert load_recipe("darcy_smoke", {"training": {"epochs": 1}, "model": {"depth": 1}}) == wanted
    assert load_recipe("darcy_smoke", ["training={epochs: 1}", "model={depth: 1}"]) == wanted
    assert load_recipe("darcy_smoke", {"model": {"name": "transolver"}}).training.lr == wanted.training.lr
    with pytest.raises(ConfigError, match=r"changes: 3 is no key"):
        load_recipe("darcy_smoke", {3: 1})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="is one text; write"):
        load_recipe("darcy_smoke", "model.depth=1")


def test_overrides_are_typed_by_the_tree() -> None:
    recipe = load_recipe(
        "darcy",
        [
            "model.depth=4",
            "training.lr=1e-3",
            "model.correction=0111",
            "model.positional_encoding=true",
            "training.clip=null",
        ],
    )
    assert isinstance(recipe.model, GeomanoConfig)
    assert recipe.model.depth == 4
    assert recipe.training.lr == 1e-3
    assert recipe.model.correction == "0111"
    assert recipe.model.positional_encoding is True
    assert recipe.training.clip is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.dept=4", "unknown key model.dept; did you mean 'depth'?"),
        ("modle.depth=4", "unknown key modle; did you mean 'model'?"),
        ("data.generate.gird=9", "unknown key data.generate.gird; did you mean 'grid'?"),
        ("model.zzzzzz=4", "unknown key model.zzzzzz; valid keys here: name, depth"),
        ("model.depth=four", "model.depth: Input should be a valid integer"),
        ("model.depth=[1]", "model.depth: Input should be a valid integer"),
        ("model.depth=0", "model.depth: Input should be greater than 0"),
        ("model.kind=3d", "model.kind: Input should be '1d' or '2d'"),
        ("model.correction=01", "needs four digits"),
        (
            "model.name=deeponet",
            "model.name: 'deeponet' is not known; choose one of fno, geomano, transolver, uno, or package.module:Class",
        ),
        (
            "model={name: transolver, kind: 2d}",
            "unknown key model.kind; valid keys here: name, depth, embedding, heads",
        ),
        ("model={name: transolver, slice: 4}", "unknown key model.slice; did you mean 'slices'?"),
        ("model={name: transolver, heads: 7}", "model: embedding 128 is not a multiple of heads 7"),
        ("compute.precision=float8", "compute.precision: Input should be 'float32', 'bfloat16' or 'float16'"),
        ("model.patch=2", "encoder pointwise does not go with patch 2"),
        ("training.epochs.x=2", "training.epochs.x: epochs is a value"),
        ("model.depth", "write it as key=value"),
        ("data={", "not valid YAML"),
    ],
)
def test_wrong_override_names_the_key_in_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe("darcy_smoke", [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mask_without_quotes_in_a_file_is_an_error_that_says_so() -> None:
    with pytest.raises(ConfigError, match=r"model\.correction: write the mask in quotes"):
        recipe_from_mapping({"name": "x", "data": {"store": "s"}, "model": {"correction": 9}}, "mine.yaml")


def test_missing_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"mine.yaml: data is missing"):
        recipe_from_mapping({"name": "x"}, "mine.yaml")


def test_another_model_keeps_the_rest_of_the_recipe() -> None:
    recipe = load_recipe("navier_stokes", ["model.slices=32", "model.embedding=256", "model.name=transolver"])
    assert recipe.model == TransolverConfig(embedding=256, slices=32)
    assert recipe.training == load_recipe("navier_stokes").training
    assert load_recipe("darcy", ["model.name=geomano"]) == load_recipe("darcy")


def test_spectral_baselines_are_computed_as_their_package_does() -> None:
    with pytest.raises(ConfigError, match="recipe darcy: model fno is computed as its package does, in float32"):
        load_recipe("darcy", ["model.name=fno", "compute.precision=bfloat16"])


@pytest.mark.parametrize(("text", "message"), [("a: [", "not valid YAML"), ("- a", "expected a mapping")])
def test_broken_recipe_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"broken.yaml.*{message}"):
        load_recipe(str(file))


def test_unknown_recipe_suggests_the_closest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'darcy_smoke'"):
        load_recipe("darcy_smok")


def test_true_is_not_a_number() -> None:
    with pytest.raises(ConfigError, match=r"model\.depth: true and false go with switches only"):
        recipe_from_mapping({"name": "x", "data": {"store": "s"}, "model": {"depth": True}}, "mine.yaml")


def test_darcy_fast_is_darcy_best_from_coarse_to_fine() -> None:
    fast, best = (load_recipe(name).model_dump(mode="json") for name in ("darcy_fast", "darcy_best"))
    stages = fast["training"].pop("resolutions")
    assert best["training"].pop("resolutions") is None
    assert (fast.pop("name"), best.pop("name")) == ("darcy_fast", "darcy_best")
    assert fast == best
    assert sum(epochs for _, epochs in stages) == best["training"]["epochs"]
