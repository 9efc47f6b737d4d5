"""The models that benchmarks compare on a problem: ours and its rivals, at about one size.

One of ours is taken from its recipe by name, with the benchmark's depth and width: who changes the recipe changes what
is measured.
"""

from typing import Any

from geomano_hpc.config.models import DEFAULT_MODEL
from geomano_hpc.config.recipe_files import RECIPES

_SMALL = {"depth": 4, "embedding": 32, "dstate": 16}


def model_of(recipe: str, **changes: Any) -> dict[str, Any]:
    """The model of a shipped recipe, as it is written there, with some keys changed."""
    content, _ = RECIPES.read(recipe)
    return {"name": DEFAULT_MODEL, **content.get("model", {}), **changes}


DARCY: dict[str, dict[str, Any]] = {
    "geomano": model_of("bench_darcy"),
    "geomano corners": model_of("bench_darcy", orders="corners"),
    "geomano best": model_of("darcy_best", **_SMALL),
    "transolver": {"name": "transolver", "depth": 4, "embedding": 24, "heads": 4, "slices": 64},
    "fno": {"name": "fno", "depth": 4, "embedding": 9, "modes": 6},
    "uno": {"name": "uno", "embedding": 9, "modes": 4},
}

_BEST_IN_TIME = {"depth": 2, "embedding": 48, "dstate": 4}

NAVIER_STOKES: dict[str, dict[str, Any]] = {
    "geomano": model_of("bench_navier_stokes"),
    "transolver": {"name": "transolver", "depth": 4, "embedding": 26, "heads": 2, "slices": 32},
    "fno": {"name": "fno", "depth": 4, "embedding": 8, "modes": 7},
    "uno": {"name": "uno", "embedding": 8, "modes": 5},
}

NAVIER_STOKES_BEST: dict[str, dict[str, Any]] = {
    "geomano best": model_of("navier_stokes_best", **_BEST_IN_TIME),
    "without the scan": model_of("navier_stokes_best", **_BEST_IN_TIME, scan=False),
    **{name: NAVIER_STOKES[name] for name in ("transolver", "fno", "uno")},
}
