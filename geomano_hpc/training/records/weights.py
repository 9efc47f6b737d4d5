"""The trained weights of a run, with all that a prediction needs: the model's configuration, the normalisers, the grid.

A file of weights stands alone: it can be handed on without its run folder.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from geomano_hpc.atomic import replacing
from geomano_hpc.config import ModelConfig, Recipe, recipe_from_mapping
from geomano_hpc.data import Signature, Split
from geomano_hpc.errors import GeomanoError

_ENTRY = "geomano_hpc"


def save_weights(file: Path, weights: dict[str, torch.Tensor], split: Split, recipe: Recipe) -> None:
    # Not the whole recipe: where the data lay and how it was trained would make other bytes of the same weights.
    model = {"model": recipe.model.model_dump(mode="json"), "precision": recipe.compute.precision}
    shapes = {"in_channels": split.in_channels, "out_channels": split.out_channels, "frames": split.frames}
    entry = {**split.signature.to_json(), "grid": split.grid, **shapes, **model}
    # One entry: safetensors writes several in a random order, and the same run would give other bytes.
    metadata = {_ENTRY: json.dumps(entry)}
    with replacing(file) as temporary:
        temporary.write_bytes(save(weights, metadata=metadata))


@dataclass(frozen=True)
class Alone:
    """What a prediction needs where the data of the training is not at hand."""

    weights: dict[str, torch.Tensor]
    signature: Signature
    grid: tuple[int, int]
    model: ModelConfig | None  # None in a file of an older version, which needs its run folder
    precision: str | None


def load_alone(file: Path) -> Alone:
    try:
        with safe_open(file, framework="pt") as opened:
            entry = _entry(opened)
            weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise GeomanoError(f"{file}: cannot be read ({error})") from error
    if "task" not in entry:
        raise GeomanoError(f"{file}: does not say what it predicts: it was written by an older version; train again")
    grid = (entry["grid"][0], entry["grid"][1])
    return Alone(weights, Signature.from_json(entry), grid, _model(entry, file), entry.get("precision"))


def _model(entry: dict[str, Any], file: Path) -> ModelConfig | None:
    """Read as a part of a recipe, with a recipe's checks and errors."""
    if "model" not in entry:
        return None
    around: dict[str, Any] = {"name": "weights", "data": {"store": "unknown"}}
    return recipe_from_mapping({**around, "model": entry["model"]}, str(file)).model


def _entry(weights: Any) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads((weights.metadata() or {}).get(_ENTRY, "{}"))
    return entry


def load_weights(alone: Alone, model: nn.Module, file: Path) -> None:
    """Load the weights into the model; `file` is named in errors."""
    try:
        model.load_state_dict(alone.weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise GeomanoError(f"{file} does not fit the data ({reason}); evaluate on data of the same kind") from error
