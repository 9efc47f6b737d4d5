"""Stores of the size of the benchmark's, as a report reads them: without a value in them, and so made in a moment."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zarr

from geomano_hpc.atomic import write_json
from geomano_hpc.data_prep.store import ARRAYS, MANIFEST, open_store

FILES = {
    "darcy": ["piececonst_r421_N1024_smooth1.mat", "piececonst_r421_N1024_smooth2.mat"],
    "navier_stokes": ["NavierStokes_V1e-5_N1200_T20.mat"],
}


def write_full_store(path: Path, problem: str, side: int = 0, files: list[str] | None = None) -> Path:
    """In format 2; as the public files are converted, but for what is given."""
    rollout = problem == "navier_stokes"
    side = side or (64 if rollout else 85)
    group = zarr.create_group(path, zarr_format=3)
    for name in ARRAYS:
        channels = 10 if rollout else 1
        group.create_array(name, shape=(1200, side, side, channels), dtype="float32", chunks=(1, side, side, channels))
    frames = {"input": 10, "target": 10} if rollout else {"input": 0, "target": 0}
    sources = [{"name": name, "sha256": "0", "generation": None} for name in files or FILES[problem]]
    group.attrs["geomano"] = {
        "format": 2,
        "problem": problem,
        "task": "rollout" if rollout else "steady",
        "train_samples": 1000,
        "test_samples": 200,
        "normalisers": {name: {"mean": 0.0, "std": 1.0} for name in ARRAYS},
        "provenance": {"sources": sources, "stride": 1 if rollout else 5, "frames": frames},
    }
    write_json(path / MANIFEST, {"format": 2, "sha256": {}})
    return path


def write_card(path: Path, **changes: Any) -> Path:
    """Of the store, with changes, in today's format."""
    card = replace(open_store(path).card, format=3, **changes)
    zarr.open_group(path).attrs["geomano"] = card.to_json()
    return path


@pytest.fixture(scope="session")
def full_stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("full")
    return {problem: write_full_store(folder / f"{problem}.zarr", problem) for problem in FILES}
