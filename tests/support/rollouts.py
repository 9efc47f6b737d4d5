"""A store of two fields in time, recipes for it with the keys `rollout`, and a model of one's own."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from geomano_hpc.config import Recipe, load_recipe
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.conversion.splits import SplitRule
from geomano_hpc.data_prep.problems import own_problem

FRAMES_IN, FRAMES_OUT = 3, 5
EVERYTHING = {
    "target": "increment",
    "frames_in": 1,
    "noise": 0.03,
    "steps_per_window": 2,
    "pairs": "all",
    "pushforward": 1,
}
MODELS: dict[str, dict[str, Any]] = {
    "geomano": {"name": "geomano", "domain": "3d", "depth": 1, "embedding": 8, "dstate": 2},
    "fno": {"name": "fno", "depth": 1, "embedding": 4, "modes": 2},
    "uno": {"name": "uno", "embedding": 4, "modes": 2},
    "transolver": {"name": "transolver", "depth": 1, "embedding": 8, "heads": 2, "slices": 4},
    "own": {"name": "tests.support.rollouts:Pointwise"},
}


def make_drifting_store(folder: Path) -> Path:
    """Two fields of other units that drift by a constant of each sample, over a mask; three windows of a trajectory."""
    rng, steps = np.random.default_rng(0), 10
    nu = rng.uniform(0.5, 1.5, 8)
    drift = nu[:, None, None, None] * np.arange(steps)[:, None, None]
    start = rng.standard_normal((8, 1, 8, 8))
    raw = {"u": start + drift, "v": 1000 * (2 - start - 3 * drift), "mask": rng.random((8, 8, 8)), "nu": nu}
    np.savez(folder / "raw.npz", **raw)  # type: ignore[arg-type]
    frames: dict[str, Any] = {"frames_in": FRAMES_IN, "frames_out": FRAMES_OUT, "window_stride": 1}
    fields = (["mask"], ["u", "v"], ["nu"])
    own = own_problem("rollout", "drift", *fields, SplitRule(6, None, 2), axes="sample x y,sample t x y", **frames)
    convert([folder / "raw.npz"], own, folder / "drift.zarr")
    return folder / "drift.zarr"


class Pointwise(nn.Module):
    """A model of the user's."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)

    def forward(self, x_BHWC: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear(x_BHWC)
        return found


def make_recipe(store: Path, keys: dict[str, Any], model: str = "own", **training: Any) -> Recipe:
    changes = {
        "data.store": str(store),
        "model": MODELS[model],
        "training": {"engine": "torch", "epochs": 2, "figures_every": 0, "log_every": 1, **training},
        "rollout": keys,
    }
    return load_recipe("rollout", changes)
