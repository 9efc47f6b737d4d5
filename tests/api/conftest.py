"""A folder as a user has it: stores, and a trained run of each kind, made once."""

import shutil
from pathlib import Path

import pytest
import torch

import geomano_hpc as gm

MODEL = {"model.depth": 1, "model.embedding": 16, "model.dstate": 2}
TINY = {**MODEL, "training.epochs": 1, "training.engine": "torch", "training.figures_every": 0}
TINY |= {"training.figures_every": 0}


@pytest.fixture(scope="session")
def home(darcy_store: Path, navier_stokes_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    torch.set_num_threads(1)
    for name, store in (("darcy", darcy_store), ("navier_stokes", navier_stokes_store)):
        copied = shutil.copytree(store, folder / "data" / f"{name}.zarr")
        changes = {**TINY, "data.store": str(copied), "data.generate": None}
        gm.train(f"{name}_smoke", changes, out=folder / "runs" / name / "seed-0")
    return folder


@pytest.fixture
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    return home
