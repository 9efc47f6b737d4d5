"""Small changes to recipes and what is compared of two runs."""

from geomano_hpc.config import Recipe
from geomano_hpc.training.run_folder import RunFolder


def changed(recipe: Recipe, **training: object) -> Recipe:
    return Recipe.model_validate({**recipe.model_dump(), "training": {**recipe.training.model_dump(), **training}})


def curve(folder: RunFolder) -> list[tuple[float, float]]:
    return [(line["train_loss"], line["test_rel_l2"]) for line in folder.metrics()]
