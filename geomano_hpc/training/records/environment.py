"""What a number depends on besides its recipe: versions, code revision, hardware, scan backend, data."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import geomano_hpc
from geomano_hpc.kernels import BackendStatus
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.records.revision import git_revision

PACKAGES = (
    "torch",
    "triton",
    "deepspeed",
    "mpi4py",
    "h5py",
    "zarr",
    "submitit",
    "tensorboard",
    "numpy",
    "scipy",
    "numcodecs",
    "tensorstore",
    "neuraloperator",
    "wandb",
    "mlflow-skinny",
)


def package_versions() -> dict[str, str | None]:
    return {name: _version(name) for name in PACKAGES}


def describe_environment(ranks: Ranks, scan_backend: BackendStatus | None, data_hash: str) -> dict[str, Any]:
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "geomano_hpc": geomano_hpc.__version__,
        "git_revision": git_revision(),
        "python": platform.python_version(),
        "packages": package_versions(),
        "hardware": hardware(),
        "world_size": ranks.world_size,
        "threads": torch.get_num_threads(),
        "scan_backend": None if scan_backend is None else scan_backend.name,
        "scan_backend_reason": "the model has no scan" if scan_backend is None else scan_backend.reason,
        "data_hash": data_hash,
    }


def hardware() -> dict[str, Any]:
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "host": platform.node(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpus": gpus,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
