"""One run's full configuration (a recipe): its strict tree, its YAML files, its overrides."""

from geomano_hpc.config.models import ModelConfig, RecordedModel, model_names, register_model
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
    RolloutConfig,
    TrainingConfig,
)

__all__ = [
    "ComputeConfig",
    "DataConfig",
    "GenerateConfig",
    "LossConfig",
    "ModelConfig",
    "Recipe",
    "RecordedModel",
    "RolloutConfig",
    "TrainingConfig",
    "apply_changes",
    "load_recipe",
    "model_names",
    "recipe_from_mapping",
    "recipe_names",
    "register_model",
    "to_yaml",
]
