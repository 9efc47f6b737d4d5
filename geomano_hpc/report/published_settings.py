"""How the published numbers were made, as data: for each row of the paper the keys of a recipe, as far as is known."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from geomano_hpc.report.published import PUBLISHED_SIZE, PUBLISHED_TRANSOLVER, ablation_row, best_row, name_in_paper


@dataclass(frozen=True)
class PublishedData:
    """What every row of a problem was trained and judged on; there is no validation split."""

    files: tuple[str, ...]  # the FNO authors', without their endings
    side: int  # points
    stride: int  # of the points in the files
    frames: tuple[int, int] | None  # given and predicted
    normalised: bool
    viscosity: float | None = None
    train_samples: int = 1000
    test_samples: int = 200


DATA = {
    "darcy": PublishedData(
        ("piececonst_r421_N1024_smooth1", "piececonst_r421_N1024_smooth2"),
        side=85,
        stride=5,
        frames=None,
        normalised=True,
    ),
    "navier_stokes": PublishedData(
        ("NavierStokes_V1e-5_N1200_T20",), side=64, stride=1, frames=(10, 10), normalised=False, viscosity=1e-5
    ),
}


@dataclass(frozen=True)
class Settings:
    """`keys`: value by key of a recipe. `doubts`: why no run of this package is for certain made like the row."""

    keys: Mapping[str, Any] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


# Keys that change how a run is computed, watched and kept, and not what is learnt.
WITHOUT_EFFECT = frozenset(
    {
        *(f"training.{key}" for key in ("seed", "accumulate", "engine", "zero", "deepspeed", "skip_nonfinite")),
        *(f"training.checkpoint_{key}" for key in ("every", "steps", "minutes")),
        *(f"training.{key}" for key in ("keep_checkpoints", "evaluate_every", "rank_timeout")),
        *(f"training.{key}" for key in ("loggers", "log_every", "figures_every")),
        "compute.activation_checkpointing",
        "compute.compile",
        "model.name",
        "model.scan_backend",
        "model.discretisation",  # of other grids than that of the training
    }
)

# What the seconds and the memory of an epoch depend on, beside the sizes of the data and all keys of model and loss.
OF_COST = ("training.batch_size", "training.accumulate", "compute.precision", "compute.activation_checkpointing")

# Table "Training configurations" without its learning rate. Weight decay and clipping are those of the benchmark's
# public code, which the paper follows; of the precision the paper says nothing, and that code has float32 only.
_SHARED: dict[str, Any] = {
    "loss.name": "relative_l2",
    "loss.options": {},
    "training.epochs": 500,
    "training.optimizer": "adamw",
    "training.optimizer_options": {},
    "training.weight_decay": 1e-5,
    "training.scheduler": "onecycle",
    "training.scheduler_options": {},
    "training.warmup": None,
    "compute.precision": "float32",
}
_BENCHMARK: dict[str, dict[str, Any]] = {
    "darcy": {**_SHARED, "loss.gradient_weight": 0.1, "training.batch_size": 4, "training.clip": 0.1},
    "navier_stokes": {**_SHARED, "loss.gradient_weight": 0.0, "training.batch_size": 2, "training.clip": None},
}

# Table "Model configurations", and the text. Ours, where the paper is silent: mlp_ratio; expand (its algorithms write A
# as (N, ED)); the form of the correction is that of its equations. The last ones are keys of ours, off.
_GEOMANO: dict[str, Any] = {
    "training.lr": 3e-4,
    "model.expand": 1,
    "model.mlp_ratio": 2.0,
    "model.orders": "paper",
    "model.correction_form": "equation",
    "model.encoder": "pointwise",
    "model.patch": 1,
    "model.position_frequencies": 8,
    "model.periodic": "off",
    "model.conv_size": 3,
    "model.mlp_conv": 0,
    "model.spectral_modes": 0,
    "model.exact_hold": False,
    "model.transport": 0,
    "model.path": "normed",
    "model.dt_rank": "auto",
    "model.dt_range": [1e-3, 1e-1],
    "model.scan": True,
    "model.scan_bias": False,
    "model.way_out": "gated",
}
_DOMAIN = {"darcy": "2d", "navier_stokes": "3d"}

# Transolver's own repository: its scripts, and the defaults of what they call. Its published error on Navier-Stokes is
# said not to be reached by that script (issue 22 there).
_TRANSOLVER = {"training.lr": 1e-3}

# Scripts of the benchmark's library (Neural-Solver-Library). They are younger than the published numbers. On
# Navier-Stokes FNO is fed its own frames while it trains, and not the true ones.
_FNO: dict[str, dict[str, Any]] = {
    "darcy": {"training.lr": 1e-3, "training.clip": None, "model.embedding": 128},
    "navier_stokes": {
        "training.batch_size": 20,
        "training.lr": 5e-4,
        "training.weight_decay": 1e-4,
        "training.scheduler": "step",
        "model.embedding": 64,
    },
}
_OTHER_IMPLEMENTATION = ("FNO", "U-NO")  # models here that are those of the package neuraloperator


def settings_of(problem: str, model: Mapping[str, Any]) -> Settings | None:
    """What is known of the row of the paper that a model is to be compared with; None for a model without a row.

    A GeoMaNO that is in no row of the ablation is compared with that of the main results.
    """
    name = name_in_paper(str(model["name"]))
    if name is None:
        return None
    if name == "GeoMaNO":
        kind, position, correction = ablation_row(problem, model) or best_row(problem)
        varied = {"model.kind": kind, "model.positional_encoding": position, "model.correction": correction}
        size = dict(zip(("model.depth", "model.embedding", "model.dstate"), PUBLISHED_SIZE[problem], strict=True))
        return Settings({**_BENCHMARK[problem], **_GEOMANO, "model.domain": _DOMAIN[problem], **size, **varied})
    if name == "Transolver":
        size = {f"model.{key}": value for key, value in PUBLISHED_TRANSOLVER[problem].items()}
        return Settings({**_BENCHMARK[problem], **_TRANSOLVER, **size})
    doubts = [f"the published configuration of {name} is not known"]
    if name in _OTHER_IMPLEMENTATION:
        doubts.insert(0, f"{name} of the package neuraloperator, not of the benchmark")
    if name != "FNO":
        return Settings(doubts=tuple(doubts))
    if problem == "navier_stokes":
        doubts.append("trained on true frames, not on its own")
    size = {"model.depth": 4, "model.modes": 12}
    return Settings({**_BENCHMARK[problem], **size, **_FNO[problem]}, tuple(doubts))
