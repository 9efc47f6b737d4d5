"""geomano_hpc: train GeoMaNO, the Geometric Mamba Neural Operator, from a laptop to a cluster.

    import geomano_hpc as gm
    model = gm.GeoMaNO(in_channels=3, out_channels=1, depth=8, embedding=64)
    train = gm.open_dataset("data/darcy.zarr", split="train")
    result = gm.train("darcy_smoke", {"training.epochs": 2}, out="runs/try")
    run = gm.load("runs/try")
    u = run.predict(a)

`__all__` is the stable surface. Importing the package loads nothing heavy: torch, DeepSpeed and MPI come in where they
are used.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from geomano_hpc.errors import (
    BackendError,
    ConfigError,
    DataError,
    FolderInUseError,
    GeomanoError,
    PreemptedError,
)
from geomano_hpc.with_torch import register_operators

__version__ = "0.1.0"

if TYPE_CHECKING:
    from geomano_hpc.api.dataset import FieldDataset, open_dataset
    from geomano_hpc.api.result import Result
    from geomano_hpc.api.run import Run, load
    from geomano_hpc.api.training import train
    from geomano_hpc.config import Recipe, load_recipe
    from geomano_hpc.data_prep.store import Normaliser
    from geomano_hpc.kernels import ScanOrder, geo_scan
    from geomano_hpc.models.geomano import GeoMaNO
    from geomano_hpc.training.callbacks import Callback, Progress

__all__ = [
    "BackendError",
    "Callback",
    "ConfigError",
    "DataError",
    "FieldDataset",
    "FolderInUseError",
    "GeoMaNO",
    "GeomanoError",
    "Normaliser",
    "PreemptedError",
    "Progress",
    "Recipe",
    "Result",
    "Run",
    "ScanOrder",
    "__version__",
    "geo_scan",
    "load",
    "load_recipe",
    "open_dataset",
    "train",
]

_LOADED_WHEN_USED = {
    "Callback": "training.callbacks",
    "FieldDataset": "api.dataset",
    "GeoMaNO": "models.geomano",
    "Normaliser": "data_prep.store",
    "Progress": "training.callbacks",
    "Recipe": "config",
    "Result": "api.result",
    "Run": "api.run",
    "ScanOrder": "kernels",
    "geo_scan": "kernels",
    "load": "api.run",
    "load_recipe": "config",
    "open_dataset": "api.dataset",
    "train": "api.training",
}

if not TYPE_CHECKING:  # a type checker would take every misspelt name for one of these

    def __getattr__(name: str) -> Any:
        if name not in _LOADED_WHEN_USED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        value = getattr(import_module(f"{__name__}.{_LOADED_WHEN_USED[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)


register_operators()
