"""Baselines in the same trainer as our model."""

from pathlib import Path

import pytest
import torch

from geomano_hpc.config import Recipe
from geomano_hpc.training.evaluate import load_trained
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.run_folder import RunFolder
from tests.support.training_runs import mean_error

MODELS = {
    "transolver": {"depth": 1, "embedding": 16, "heads": 2, "slices": 4},
    "fno": {"depth": 2, "embedding": 6, "modes": 3},
    "uno": {"embedding": 6, "modes": 3},
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow
def test_baselines_learn_in_the_trainer_and_are_loaded_again(name: str, tiny_recipe: Recipe, tmp_path: Path) -> None:
    recipe = Recipe.model_validate({**tiny_recipe.model_dump(), "model": {"name": name, **MODELS[name]}})
    folder = RunFolder(tmp_path / "run")
    result = train(recipe, folder)
    losses = [line["train_loss"] for line in folder.metrics()]
    assert losses[-1] < losses[0]
    coarse, task = load_trained(folder, resolution=5)
    assert task.predict(coarse, torch.arange(2), torch.device("cpu")).shape == (2, 5, 5, 1)
    model, task = load_trained(folder)
    assert mean_error(model, task, 4) == pytest.approx(result["rel_l2"], rel=1e-5)
    assert '"scan_backend": null' in folder.environment_file.read_text()


def test_baseline_rolls_out_frames(tiny_recipe: Recipe, navier_stokes_store: Path, tmp_path: Path) -> None:
    content = tiny_recipe.model_dump()
    content["model"] = {"name": "fno", **MODELS["fno"]}
    content["data"]["store"], content["loss"]["gradient_weight"] = navier_stokes_store, 0.0
    content["training"]["epochs"] = 1
    result = train(Recipe.model_validate(content), RunFolder(tmp_path / "run"))
    assert 0 < result["rel_l2"] < 10
