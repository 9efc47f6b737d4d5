"""Fixtures that several parts share."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from geomano_hpc.config import Recipe, load_recipe
from geomano_hpc.data_prep.convert import convert
from geomano_hpc.data_prep.generate import Generation, generate
from geomano_hpc.data_prep.problems import problem

# A suite in the background is told to ignore Ctrl-C and would pass that on to what the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _one_thread_and_no_launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small operations are faster on one thread, and no test inherits the ranks of another."""
    for name in list(os.environ):
        if name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") or name.startswith(("MASTER_", "SLURM_", "OMPI_", "PMI_")):
            monkeypatch.delenv(name)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def darcy_raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("darcy") / "darcy.h5"
    generate(Generation("darcy", samples=14, grid=17), path, workers=1)
    return path


@pytest.fixture(scope="session")
def darcy_store(darcy_raw: Path) -> Path:
    path = darcy_raw.with_suffix(".zarr")
    convert([darcy_raw], problem("darcy", train_samples=10, test_samples=4, stride=2), path)
    return path


@pytest.fixture(scope="session")
def navier_stokes_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tmp_path_factory.mktemp("navier_stokes") / "ns.h5"
    generate(Generation("navier_stokes", samples=4, grid=16, viscosity=1e-3), raw, workers=1)
    path = raw.with_suffix(".zarr")
    convert([raw], problem("navier_stokes", train_samples=3, test_samples=1, stride=2), path)
    return path


@pytest.fixture
def tiny_recipe(darcy_store: Path) -> Recipe:
    """A run of a second: three batches an epoch, the last of them smaller."""
    return load_recipe(
        "darcy_smoke",
        [
            f"data.store={darcy_store}",
            "data.generate=null",
            "model.depth=1",
            "model.embedding=8",
            "model.dstate=2",
            "training.epochs=3",
        ],
    )
