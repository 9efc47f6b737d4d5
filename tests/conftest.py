"""Fixtures that several parts share."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

from geomano_hpc.config import Recipe, load_recipe
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.conversion.splits import SplitRule
from geomano_hpc.data_prep.generate import Generation, generate
from geomano_hpc.data_prep.problems import own_problem, problem

# A suite in the background is told to ignore Ctrl-C and would pass that on to what the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Markers of tests that `make check` leaves out; pyproject.toml says what each means.
NOT_QUICK = ("slurm", "ranks", "compile", "interpreter", "browser")
COMPILATIONS = "tests/kernels/test_triton_compile.py"  # those for one GPU go to one worker
# Files whose tests go to one worker in a run of all: they share what there is once.
TOGETHER = {
    "tests/kernels/test_gpu_budgets.py": "sm_80",  # which is compiled there anyway
    "tests/slurm/test_cluster.py": "testbed",
    "tests/slurm/test_testbed.py": "testbed",
    "tests/test_site.py": "site",
}
GIVEN = {"testbed": "slurm", "ranks": "ranks"}  # the marker of whatever uses a fixture


def pytest_itemcollected(item: pytest.Item) -> None:
    """What is not quick is `slow`, too. The longest mostly start programs, or are slow in what measures coverage."""
    for fixture in getattr(item, "fixturenames", ()):
        if fixture in GIVEN:
            item.add_marker(GIVEN[fixture])
    if any(item.get_closest_marker(name) for name in NOT_QUICK):
        item.add_marker(pytest.mark.slow)
    if _seconds(item) > 1:
        item.add_marker(pytest.mark.no_cover)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """From the longest to the shortest, so that the workers end together."""
    items.sort(key=_seconds, reverse=True)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Of our own: the groups of xdist 3.8 (--dist loadgroup) have no effect with pytest 9.2, since it writes them into
    a field of the tests that is no longer read."""
    return _Together(config, log)


class _Together(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file, _, name = nodeid.partition("::")
        if file == COMPILATIONS:
            return name.rpartition(", ")[2]  # the GPU
        return TOGETHER.get(file, nodeid)


def _seconds(item: pytest.Item) -> float:
    """Roughly, as the test says it itself: @pytest.mark.slow(60). Those on Slurm run one after the other, and wait."""
    if item.get_closest_marker("slurm"):
        return 400
    said = [mark.args[0] for mark in item.iter_markers("slow") if mark.args]
    return max(said) if said else float(item.get_closest_marker("slow") is not None)


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
def validated_store(darcy_raw: Path) -> Path:
    """The same fields as a problem of one's own, with a validation split."""
    path = darcy_raw.with_name("validated.zarr")
    settings = own_problem("steady", "mine", ["k=coeff"], ["p=sol"], [], SplitRule(8, 3, 3), stride=2)
    convert([darcy_raw], settings, path)
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
    """A run of a fraction of a second: three batches an epoch, the last of them smaller; pictures would take longer."""
    return load_recipe(
        "darcy_smoke",
        [
            f"data.store={darcy_store}",
            "data.generate=null",
            "model.depth=1",
            "model.embedding=8",
            "model.dstate=2",
            "training.epochs=3",
            "training.figures_every=0",
        ],
    )
