"""Trained weights, judged again."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from geomano_hpc.config import Recipe
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.generate import Generation, generate
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.errors import ConfigError, GeomanoError
from geomano_hpc.training.evaluate import load_trained
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.run_folder import RunFolder, run_folders
from tests.support.training_runs import mean_error


def test_evaluation_gives_the_number_of_the_result(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    result = train(tiny_recipe, folder)
    model, task = load_trained(folder)
    assert mean_error(model, task, 3) == pytest.approx(result["rel_l2"], rel=1e-6)


def test_another_store_is_judged_with_the_normalisers_of_the_training(
    tiny_recipe: Recipe, darcy_raw: Path, tmp_path: Path
) -> None:
    """The same test samples in a store with another training split give the same error."""
    folder = RunFolder(tmp_path / "run")
    result = train(tiny_recipe, folder)
    other = tmp_path / "other.zarr"
    convert([darcy_raw], problem("darcy", train_samples=2, test_samples=4, stride=2), other)
    model, task = load_trained(folder, other)
    error = mean_error(model, task, 4)
    assert error == pytest.approx(result["rel_l2"], rel=1e-6)


def test_weights_that_do_not_fit_the_data_are_refused(
    tiny_recipe: Recipe, navier_stokes_store: Path, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    train(tiny_recipe, folder)
    with pytest.raises(
        GeomanoError, match=r"its fields \(10 frames of u -> u\) do not fit .*, which was trained on coeff -> sol"
    ):
        load_trained(folder, navier_stokes_store)


def test_unfinished_run_has_no_weights_yet(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.write_recipe(tiny_recipe)
    with pytest.raises(GeomanoError, match="no trained weights yet"):
        load_trained(folder)


def test_folder_without_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such study or run folder"):
        run_folders(tmp_path / "none")
    with pytest.raises(ConfigError, match="not a run folder"):
        load_trained(RunFolder(tmp_path))


def test_weights_without_normalisers_are_refused(tiny_recipe: Recipe, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    train(tiny_recipe, folder)
    save_file(load_file(folder.weights_file), folder.weights_file)
    with pytest.raises(GeomanoError, match="does not say what it predicts"):
        load_trained(folder)


@pytest.fixture(scope="module")
def darcy_at_43(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 43 x 43 points beside its raw file of 85 x 85."""
    raw = tmp_path_factory.mktemp("resolutions") / "darcy.h5"
    generate(Generation("darcy", samples=12, grid=85), raw, workers=1)
    convert([raw], problem("darcy", train_samples=8, test_samples=4, stride=2), raw.with_suffix(".zarr"))
    return raw.with_suffix(".zarr")


@pytest.mark.parametrize("encoder", [{}, {"encoder": "local", "patch": 2}])
def test_model_trained_at_43_is_evaluated_at_85(
    encoder: dict[str, object], tiny_recipe: Recipe, darcy_at_43: Path, tmp_path: Path
) -> None:
    content = tiny_recipe.model_dump()
    content["data"]["store"] = darcy_at_43
    content["model"] |= encoder
    content["training"] |= {"epochs": 12, "evaluate_every": 12, "checkpoint_every": 12}
    folder = RunFolder(tmp_path / "run")
    trained = train(Recipe.model_validate(content), folder)["rel_l2"]
    errors = {}
    for resolution in (43, 85):
        model, task = load_trained(folder, resolution=resolution)
        assert task.split.grid == (resolution, resolution)
        errors[resolution] = mean_error(model, task, 4)
    assert errors[43] == pytest.approx(trained, rel=1e-5)
    assert errors[85] == pytest.approx(trained, rel=0.25)  # another grid, the same operator
    assert errors[85] != pytest.approx(trained, rel=1e-5)
    assert errors[43] < 0.6  # it has learned something that can be carried over


def test_global_encoder_is_evaluated_on_its_own_grid_only(
    tiny_recipe: Recipe, darcy_store: Path, tmp_path: Path
) -> None:
    content = tiny_recipe.model_dump()
    content["model"] |= {"encoder": "global", "patch": 2}
    content["training"]["epochs"] = 1
    folder = RunFolder(tmp_path / "run")
    result = train(Recipe.model_validate(content), folder)
    model, task = load_trained(folder)
    assert mean_error(model, task, 3) == pytest.approx(result["rel_l2"], rel=1e-5)
    with pytest.raises(GeomanoError, match=r"tied to the grid of its training, \(9, 9\); the data has \(5, 5\)"):
        load_trained(folder, resolution=5)
