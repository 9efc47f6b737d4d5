import shutil
from pathlib import Path

import pytest

from geomano_hpc.bench.data import generation
from geomano_hpc.bench.data.generation import (
    darcy_against_direct,
    measure,
    navier_stokes_against_euler,
    two_ranks_against_one,
)
from geomano_hpc.bench.measurement import Measurement
from geomano_hpc.data_prep.generate import Generation
from geomano_hpc.errors import GeomanoError


def test_darcy_is_compared_with_the_best_direct_solver() -> None:
    found = darcy_against_direct(41, rounds=1)
    assert found.value > 0
    assert found.at_least == 3.0
    assert "the fastest of spsolve MMD_AT_PLUS_A, spsolve COLAMD, splu in symmetric mode" in found.detail


def test_wrong_darcy_solver_gets_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"seconds": {"ours": 1.0, "spsolve": 9.0}, "difference": 1e-3, "residual": 1e-9}
    monkeypatch.setattr(generation, "run_in_child", lambda *_, **__: answer)
    with pytest.raises(GeomanoError, match="its speed is not reported"):
        darcy_against_direct(41, rounds=1)


def test_navier_stokes_takes_fewer_transforms_than_euler_for_the_same_accuracy() -> None:
    """Transforms are counted, not timed, so the bar holds on any machine."""
    found = navier_stokes_against_euler(32, start=1.0, t=0.1)
    assert found.met
    assert "explicit Euler at dt 0.0001 4000 with" in found.detail


def test_schemes_that_disagree_are_not_measured() -> None:
    with pytest.raises(GeomanoError, match="two schemes disagree"):
        navier_stokes_against_euler(16, start=0.0, t=2.0, euler_dt=1.0)


@pytest.mark.parametrize("launcher", ["mpirun", None])
@pytest.mark.ranks
def test_two_ranks_are_timed_where_they_make_the_same_file(
    launcher: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if launcher and shutil.which(launcher) is None:
        pytest.skip("no mpirun on this machine")
    if launcher is None:
        monkeypatch.setattr(shutil, "which", lambda _: None)
    found = two_ranks_against_one(Generation("darcy", 8, 12), rounds=1, bar=False)
    assert found.value > 0
    assert found.met is None
    assert ("MPI ranks" if launcher else "no mpirun here") in found.detail


def test_ranks_that_make_another_file_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def pretend(_: object, content: object, out: str, workers: int, **named: object) -> dict[str, float]:
        Path(out).write_text(f"{workers} {named['launcher']}", encoding="utf-8")
        return {"seconds": 1.0, "cpu": 1.0}

    monkeypatch.setattr(generation, "run_in_child", pretend)
    with pytest.raises(GeomanoError, match="another darcy file than one"):
        two_ranks_against_one(Generation("darcy", 8, 12), rounds=1, bar=False)


@pytest.mark.parametrize(("cores", "figures"), [(1, 2), (2, 4)])
def test_scaling_is_measured_only_where_there_are_two_cores(
    cores: int, figures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("darcy_against_direct", "navier_stokes_against_euler", "two_ranks_against_one"):
        monkeypatch.setattr(generation, name, lambda *_, **__: Measurement("", 1.0, "x", ""))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert len(measure(quick=True)) == figures
