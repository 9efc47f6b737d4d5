"""One run's full configuration (a recipe): its strict tree, its YAML files, its overrides."""

from geomano_hpc.config.models import (
    FnoConfig,
    GeomanoConfig,
    ModelConfig,
    TransolverConfig,
    UnoConfig,
)
from geomano_hpc.config.recipe_files import (
    apply_changes,
    load_recipe,
    recipe_from_mapping,
    recipe_names,
    to_yaml,
)
from geomano_hpc.config.tree import (
    ComputeConfig,
    DataConfig,
    GenerateConfig,
    LossConfig,
    Recipe,
    TrainingConfig,
)

__all__ = [
    "ComputeConfig",
    "DataConfig",
    "FnoConfig",
    "GenerateConfig",
    "GeomanoConfig",
    "LossConfig",
    "ModelConfig",
    "Recipe",
    "TrainingConfig",
    "TransolverConfig",
    "UnoConfig",
    "apply_changes",
    "load_recipe",
    "recipe_from_mapping",
    "recipe_names",
    "to_yaml",
]
