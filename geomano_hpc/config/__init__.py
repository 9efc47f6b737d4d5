"""One run's full configuration (a recipe): its strict tree, its YAML files, its overrides."""

from geomano_hpc.config.recipe_files import (
    load_recipe,
    recipe_from_mapping,
    recipe_names,
    to_yaml,
)
from geomano_hpc.config.tree import (
    DataConfig,
    GenerateConfig,
    LossConfig,
    ModelConfig,
    Recipe,
    TrainingConfig,
)

__all__ = [
    "DataConfig",
    "GenerateConfig",
    "LossConfig",
    "ModelConfig",
    "Recipe",
    "TrainingConfig",
    "load_recipe",
    "recipe_from_mapping",
    "recipe_names",
    "to_yaml",
]
