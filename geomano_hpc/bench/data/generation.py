"""Speed of the generators, after a check that their numbers are right: against a sparse direct solve, against explicit
Euler, and on two ranks against one.

What is timed runs in processes of its own with one thread, so that a figure is one of a core.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from geomano_hpc.bench.child import ALONE, ONE_THREAD, mpi, run_in_child
from geomano_hpc.bench.measurement import Measurement
from geomano_hpc.data_prep.generate import Generation, generate
from geomano_hpc.data_prep.generators import darcy, navier_stokes
from geomano_hpc.data_prep.generators.vorticity import Solver
from geomano_hpc.data_prep.ranks import communicator
from geomano_hpc.errors import GeomanoError
from geomano_hpc.progress import progress

Content = dict[str, Any]


def measure(quick: bool) -> list[Measurement]:
    """Darcy at 421 x 421 against scipy's direct solver, Navier-Stokes against Euler, two ranks against one.

    quick: fewer rounds, a coarser flow, and a scaling that is too short to be held against its bar.
    """
    steps: list[Callable[[], Measurement]] = [
        partial(darcy_against_direct, 421, 1 if quick else 5),
        partial(navier_stokes_against_euler, *((64, 2.0, 0.2) if quick else (256, 10.0, 1.0))),
    ]
    if len(os.sched_getaffinity(0)) > 1:
        short = (Generation("darcy", 16, 201), Generation("navier_stokes", 16, 32))
        long = (Generation("darcy", 64, 421), Generation("navier_stokes", 32, 64))
        for generation in short if quick else long:
            steps.append(partial(two_ranks_against_one, generation, 1 if quick else 3, bar=not quick))
    measured = []
    with progress("bench generators", len(steps)) as advance:
        for step in steps:
            measured.append(step())
            advance("")
    return measured


def darcy_against_direct(n: int, rounds: int) -> Measurement:
    """Seconds for one system on one core, best of interleaved rounds; making the sparse matrix is not counted."""
    found = run_in_child(time_darcy, n, rounds, environment=ONE_THREAD)
    if not found["difference"] < 1e-8 or not found["residual"] < 1e-8:
        raise GeomanoError(f"the Darcy solver is wrong, so its speed is not reported: {found}")
    seconds = found["seconds"]
    ours = seconds.pop("ours")
    best = min(seconds, key=lambda name: seconds[name])
    detail = (
        f"{n} x {n} on one core, residual {found['residual']:.0e}: {ours:.3f} s against {seconds[best]:.3f} s of "
        f"scipy's {best}, the fastest of {', '.join(seconds)}; solutions differ by {found['difference']:.0e}"
    )
    return Measurement("Darcy solve / sparse direct", seconds[best] / ours, "x", detail, at_least=3.0)


def navier_stokes_against_euler(n: int, start: float, t: float, euler_dt: float = 1e-4) -> Measurement:
    """Transforms over a time t of a flow that has developed until `start`, at an error no larger than Euler's.

    Both errors are relative L2 distances from our solver with steps of 1/20 of the Courant limit and of the largest
    step. Explicit Euler has our Crank-Nicolson diffusion, dealiasing and form with four transforms a step (the FNO
    authors' takes five).
    """
    viscosity, force = 1e-5, navier_stokes.forcing(n)
    w0 = navier_stokes.gaussian_random_field(np.random.default_rng([0, 0]), n)

    def run(courant: float, w: np.ndarray, duration: float) -> tuple[np.ndarray, int]:
        solver = Solver(n, viscosity, force, courant, largest_step=0.05 * courant)
        w = solver.to_field(solver.advance(solver.to_spectrum(w), duration))
        return w, solver.transforms_done

    flow, _ = run(0.5, w0[None], start)
    exact, _ = run(0.05, flow, t)

    def error(w: np.ndarray) -> float:
        return float(np.linalg.norm(w - exact) / np.linalg.norm(exact))

    euler, euler_transforms = explicit_euler(n, viscosity, force, flow, t, euler_dt)
    if not error(euler) < 1e-2:
        raise GeomanoError(f"two schemes disagree by {error(euler):.1e}, so the Navier-Stokes solver is not measured")
    for courant in (1.0, 0.5, 0.25, 0.125):
        ours, transforms = run(courant, flow, t)
        if error(ours) <= error(euler):
            break
    else:
        raise GeomanoError(f"the Navier-Stokes solver errs by {error(ours):.1e}, explicit Euler by {error(euler):.1e}")
    detail = (
        f"{n} x {n}, t = {start:g} .. {start + t:g}: {transforms} transforms with an error of {error(ours):.0e}, "
        f"explicit Euler at dt {euler_dt:g} {euler_transforms} with {error(euler):.0e}"
    )
    ratio = euler_transforms / transforms
    return Measurement("Navier-Stokes: Euler's transforms / ours", ratio, "x", detail, at_least=5.0)


def explicit_euler(
    n: int, viscosity: float, force: np.ndarray, w0: np.ndarray, t: float, dt: float
) -> tuple[np.ndarray, int]:
    """The FNO authors' scheme: Euler advection, Crank-Nicolson diffusion. The field at t, and its transforms."""
    solver = Solver(n, viscosity, force)
    k_x, k_y = 2 * np.pi * np.fft.fftfreq(n, 1.0 / n)[:, None], 2 * np.pi * np.fft.rfftfreq(n, 1.0 / n)[None, :]
    half = 0.5 * dt * viscosity * (k_x**2 + k_y**2)
    w = solver.to_spectrum(w0)
    for _ in range(round(t / dt)):
        w = ((1.0 - half) * w + dt * solver.tendency(*solver.velocity(w))) / (1.0 + half)
    return solver.to_field(w), solver.transforms_done


def two_ranks_against_one(generation: Generation, rounds: int, bar: bool) -> Measurement:
    """Seconds of the whole generation, assembly included, start of the interpreters excluded."""
    has_mpi = shutil.which("mpirun") is not None
    seconds: dict[int, float] = {}
    cpu: dict[int, float] = {}
    files: dict[int, bytes] = {}
    with tempfile.TemporaryDirectory(prefix="geomano-bench-") as folder:
        for _ in range(rounds):
            for number in (1, 2):
                out = Path(folder) / f"{number}.h5"
                out.unlink(missing_ok=True)
                launcher, settings = mpi(number) if has_mpi else (ALONE, {})
                found = run_in_child(
                    time_generation,
                    asdict(generation),
                    str(out),
                    1 if has_mpi else number,
                    launcher=launcher,
                    environment={**ONE_THREAD, **settings},
                )
                seconds[number] = min(found["seconds"], seconds.get(number, np.inf))
                cpu[number] = min(found["cpu"], cpu.get(number, np.inf))
                files[number] = out.read_bytes()
    if files[1] != files[2]:
        raise GeomanoError(f"two ranks make another {generation.problem} file than one, so they are not timed")
    detail = (
        f"{generation.samples} samples of {generation.grid} x {generation.grid}: {seconds[2]:.1f} s against "
        f"{seconds[1]:.1f} s (busiest rank {cpu[2]:.1f} s of CPU against {cpu[1]:.1f} s); "
        f"{'MPI ranks' if has_mpi else 'no mpirun here: worker processes'}; the same bytes"
    )
    name = f"{generation.problem}: two ranks / one"
    return Measurement(name, seconds[1] / seconds[2], "x", detail, at_least=1.8 if bar else None)


def time_darcy(n: int, rounds: int) -> Content:
    from scipy.sparse import diags_array
    from scipy.sparse.linalg import splu, spsolve

    a = darcy.threshold(darcy.gaussian_random_field(np.random.default_rng([0, 0]), n))
    operator = darcy.FivePointOperator(a)
    rows, columns = operator.rows, operator.columns
    diagonal = rows[1:] + rows[:-1] + columns[:, 1:] + columns[:, :-1]
    east = columns[:, 1:].copy()
    east[:, -1] = 0.0  # no neighbour across the end of a row
    across, along = -rows[1:-1].ravel(), -east.ravel()[:-1]
    matrix = diags_array([diagonal.ravel(), along, along, across, across], offsets=[0, 1, -1, n - 2, 2 - n]).tocsc()
    ones = np.ones((n - 2) ** 2)
    symmetric: Content = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}}
    solvers: dict[str, Callable[[], np.ndarray]] = {
        "ours": lambda: darcy.solve_on_nodes(a).ravel(),
        "spsolve MMD_AT_PLUS_A": lambda: spsolve(matrix, ones, permc_spec="MMD_AT_PLUS_A"),
        "spsolve COLAMD": lambda: spsolve(matrix, ones, permc_spec="COLAMD"),
        "splu in symmetric mode": lambda: splu(matrix, **symmetric).solve(ones),
    }
    seconds: dict[str, float] = {}
    solutions: dict[str, np.ndarray] = {}
    for _ in range(rounds):
        for name, solve in solvers.items():
            begin = time.perf_counter()
            solutions[name] = solve()
            seconds[name] = min(time.perf_counter() - begin, seconds.get(name, np.inf))
    ours, direct = solutions["ours"], solutions["spsolve MMD_AT_PLUS_A"]
    return {
        "seconds": seconds,
        "difference": float(np.linalg.norm(ours - direct) / np.linalg.norm(direct)),
        "residual": float(np.linalg.norm(matrix @ ours - ones) / np.linalg.norm(ones)),
    }


def time_generation(generation: Content, out: str, workers: int) -> Content | None:
    """What the first rank measured."""
    world = communicator()
    world.allgather(None)  # all have started
    begin, busy = time.perf_counter(), time.process_time()
    generate(Generation(**generation), Path(out), workers, world)
    seconds = time.perf_counter() - begin
    cpu = max(world.allgather(time.process_time() - busy))
    return {"seconds": seconds, "cpu": cpu} if world.rank == 0 else None
