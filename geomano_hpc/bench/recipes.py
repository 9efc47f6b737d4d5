"""The sizes of recipes, for benchmarks, audits and compile tests. Nobody else writes them down.

Model, batch, kind and correction come from the recipe, the channels and the rank from the model that it builds, frames,
samples and stride from what the package knows of the problem, or from what the recipe says about the data to generate.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from geomano_hpc.bench.kernels.problem import Scan
from geomano_hpc.config import Recipe, load_recipe
from geomano_hpc.data_prep.problems import BENCHMARK, BENCHMARK_SIZES
from geomano_hpc.errors import ConfigError
from geomano_hpc.models import build_model
from geomano_hpc.models.geomano import GeomanoConfig
from geomano_hpc.models.parts.geomamba import GeoMambaKernel

# The recipes that the paper reports, and a side of the grid in the published files.
_POINTS = {"darcy": 421, "navier_stokes": 64}
NAMES = tuple(_POINTS)

# A batch that gives every multiprocessor of a GPU a program without cutting the traversal.
FULL_BATCH = {"darcy": 256, "navier_stokes": 64}


@dataclass(frozen=True)
class Size:
    """A problem as its recipe trains it. A rollout calls the model once a frame."""

    grid: tuple[int, int]
    in_channels: int
    frames: int
    batch: int
    train_samples: int
    test_samples: int


@lru_cache
def recipe(name: str) -> Recipe:
    return load_recipe(name)


@lru_cache
def size(name: str) -> Size:
    made, store = recipe(name).data.generate, recipe(name).data.store
    known = made.problem if made else next((known for known in NAMES if store.stem.startswith(known)), "")
    if known not in NAMES:
        raise ConfigError(f"recipe {name}: the grid of {store} is not known; choose a recipe of {', '.join(NAMES)}")
    problem = BENCHMARK[known]
    points, stride = (made.grid, made.stride) if made else (_POINTS[known], problem.stride)
    side = -(-points // stride)
    return Size(
        (side, side),
        problem.frames_in or 1,
        problem.frames_out or 1,
        recipe(name).training.batch_size,
        made.train_samples if made else BENCHMARK_SIZES["train"],
        made.test_samples if made else BENCHMARK_SIZES["test"],
    )


@lru_cache
def scan(name: str) -> Scan:
    """The scan of a layer, with the batch of the recipe."""
    config, found = recipe(name).model, size(name)
    if not isinstance(config, GeomanoConfig):
        raise ConfigError(f"recipe {name}: its model is {config.name}, which has no scan; choose one of GeoMaNO")
    with torch.device("meta"):
        model = build_model(config, found.in_channels, 1, found.grid)
    kernel = next(module for module in model.modules() if isinstance(module, GeoMambaKernel))
    channels = kernel.A_log.shape[1]
    orders, correction = config.orders, config.correction
    return Scan(found.batch, *found.grid, channels, kernel.dstate, kernel.dt_rank, kernel.kind, orders, correction)


def full_scan(name: str) -> Scan:
    return replace(scan(name), batch=FULL_BATCH[name])
