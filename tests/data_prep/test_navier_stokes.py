from collections.abc import Callable

import numpy as np
import pytest
from scipy.io import loadmat

from geomano_hpc.data.torch_fft import TorchFft
from geomano_hpc.data_prep.generators import navier_stokes
from geomano_hpc.data_prep.generators.vorticity import Solver
from geomano_hpc.errors import BackendError, DataError
from tests.support.real_data import FOLDER, needs_real_data


def solve(solver: Solver, w0: np.ndarray, t: float) -> np.ndarray:
    return np.asarray(solver.to_field(solver.advance(solver.to_spectrum(w0[None]), t))[0])


def waves(n: int) -> tuple[np.ndarray, np.ndarray]:
    return 2 * np.pi * np.fft.fftfreq(n, 1 / n)[:, None], 2 * np.pi * np.fft.fftfreq(n, 1 / n)[None, :]


def random_flow(n: int, seed: int = 0, strength: float = 1.0) -> np.ndarray:
    return strength * navier_stokes.gaussian_random_field(np.random.default_rng(seed), n)


def test_taylor_green_vortex_decays_as_it_must() -> None:
    n, viscosity, t = 32, 1e-2, 1.0
    x = 2 * np.pi * np.arange(n) / n
    w0 = np.sin(x)[:, None] * np.sin(x)[None, :]
    exact = w0 * np.exp(-8 * np.pi**2 * viscosity * t)
    coarse, fine = (
        np.abs(solve(Solver(n, viscosity, np.zeros((n, n)), largest_step=step), w0, t) - exact).max()
        for step in (1 / 500, 1 / 1000)
    )
    assert fine < 1e-8
    assert 3.9 < coarse / fine < 4.1  # Crank-Nicolson: 2^2


@pytest.mark.parametrize(("viscosity", "ratio"), [(0.0, 2**4), (1e-2, 2**2)])
@pytest.mark.slow
def test_second_order_in_time_and_fourth_where_nothing_diffuses(viscosity: float, ratio: float) -> None:
    n = 32
    w0 = random_flow(n, strength=5.0)

    def at(step: float) -> np.ndarray:
        return solve(Solver(n, viscosity, navier_stokes.forcing(n), np.inf, largest_step=step), w0, 1.0)

    exact = at(1 / 1600)
    coarse, fine = (np.abs(at(step) - exact).max() for step in (1 / 200, 1 / 400))
    assert 0.7 * ratio < coarse / fine < 1.4 * ratio


def test_time_step_follows_the_fastest_point() -> None:
    n = 32
    slow, fast = (Solver(n, 1e-3, np.zeros((n, n)), largest_step=1.0) for _ in range(2))
    solve(slow, random_flow(n, strength=10.0), 0.5)
    solve(fast, random_flow(n, strength=40.0), 0.5)
    assert 2.5 < fast.transforms_done / slow.transforms_done < 5.5


@pytest.mark.parametrize("weight", ["energy", "enstrophy"])
def test_budget_closes(weight: str) -> None:
    """E = <|u|^2> / 2 changes by <psi f> - nu <w^2>; Z = <w^2> / 2 by <w f> - nu <|grad w|^2>. Simpson in time."""
    n, viscosity, step = 48, 1e-3, 0.01
    force = navier_stokes.forcing(n)
    k_x, k_y = waves(n)
    laplace = k_x**2 + k_y**2
    factor = 1 / np.where(laplace > 0, laplace, np.inf) if weight == "energy" else np.ones_like(laplace)

    def inner(one: np.ndarray, other: np.ndarray) -> float:
        return float(np.sum((np.fft.fft2(one).conj() * factor * np.fft.fft2(other)).real)) / n**4

    def change(w: np.ndarray) -> float:
        diffusion = np.fft.ifft2(-laplace * np.fft.fft2(w)).real
        return inner(w, force) + viscosity * inner(w, diffusion)

    solver = Solver(n, viscosity, force, largest_step=step / 2)
    w0 = solve(solver, random_flow(n, seed=1, strength=3.0), 0.5)
    w1, w2 = solve(solver, w0, step), solve(solver, w0, 2 * step)
    expected = step / 3 * (change(w0) + 4 * change(w1) + change(w2))
    assert 0.5 * (inner(w2, w2) - inner(w0, w0)) == pytest.approx(expected, rel=1e-5)


def test_advection_alone_conserves_energy_and_enstrophy() -> None:
    n = 48
    k_x, k_y = waves(n)
    laplace = k_x**2 + k_y**2
    kept = (3 * np.abs(k_x) < 2 * np.pi * n) & (3 * np.abs(k_y) < 2 * np.pi * n)

    def energy_and_enstrophy(w: np.ndarray) -> tuple[float, float]:
        squares = np.abs(np.fft.fft2(w)) ** 2
        return float(np.sum(squares / np.where(laplace > 0, laplace, np.inf))), float(np.sum(squares))

    w0 = np.fft.ifft2(kept * np.fft.fft2(random_flow(n, strength=3.0))).real
    w1 = solve(Solver(n, 0.0, np.zeros((n, n)), courant=0.2), w0, 1.0)
    assert np.abs(w1 - w0).max() > 0.1 * np.abs(w0).max()
    assert energy_and_enstrophy(w1) == pytest.approx(energy_and_enstrophy(w0), rel=1e-6)


@needs_real_data
def test_solver_follows_the_fno_authors_solution() -> None:
    """They solve at 256 x 256 and keep every fourth point; we start from those points on a 128 x 128 grid."""
    published = loadmat(FOLDER / "fno_generator" / "ns_V1e-5_N2_T20_s256to64.mat")
    n = 128
    coarse = np.fft.fftshift(np.fft.fft2(published["a"].astype(float)), axes=(1, 2))
    padded = np.zeros((2, n, n), complex)
    padded[:, 32:96, 32:96] = coarse * (n / 64) ** 2
    solver = Solver(n, 1e-5, navier_stokes.forcing(n))
    w = solver.to_spectrum(np.fft.ifft2(np.fft.ifftshift(padded, axes=(1, 2))).real)
    for frame in range(10):
        w = solver.advance(w, 1.0)
        for found, truth in zip(solver.to_field(w)[:, ::2, ::2], published["u"][..., frame], strict=True):
            assert np.linalg.norm(found - truth) / np.linalg.norm(truth) < 0.01


@pytest.mark.parametrize("n", [24, 27])
def test_torch_steps_a_batch_to_the_same_frames(n: int) -> None:
    together = navier_stokes.samples(0, [4, 1, 7], n, 1e-4, frames=3, transforms=TorchFft("cpu"))
    alone = navier_stokes.samples(0, [1], n, 1e-4, frames=3, transforms=TorchFft("cpu"))
    default = navier_stokes.samples(0, [4, 1, 7], n, 1e-4, frames=3)
    for key in range(2):
        np.testing.assert_allclose(together[key], default[key], rtol=0, atol=1e-12)
        np.testing.assert_allclose(together[key][1:2], alone[key], rtol=0, atol=1e-12)


def test_sample_has_the_same_bits_in_any_batch() -> None:
    """Sample 5 is moved by another flow than its neighbours, so it takes other steps; neither feels the other."""
    together = navier_stokes.samples(0, [2, 5, 3], 20, 1e-4, frames=2)
    for place, index in enumerate([2, 5, 3]):
        alone = navier_stokes.samples(0, [index], 20, 1e-4, frames=2)
        assert all(np.array_equal(one[0], many[place]) for one, many in zip(alone, together, strict=True))
    assert not np.array_equal(together[1][0], navier_stokes.samples(1, [2], 20, 1e-4, frames=2)[1][0])


def test_kept_points_are_points_of_the_finer_grid() -> None:
    fine, kept = (navier_stokes.samples(0, [0], 32, 1e-3, frames=2, keep_every=k) for k in (1, 4))
    assert kept[1].shape == (1, 8, 8, 2)
    assert all(np.array_equal(one[:, ::4, ::4], other) for one, other in zip(fine, kept, strict=True))


def test_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(BackendError, match="--device nonsense cannot be used here"):
        TorchFft("nonsense")


def test_initial_vorticity_has_the_variance_of_its_covariance() -> None:
    n, alpha, tau = 16, 2.5, 7.0
    k_x, k_y = waves(n)
    amplitude = tau ** (alpha - 1) * (k_x**2 + k_y**2 + tau**2) ** (-alpha / 2)
    amplitude[0, 0] = 0.0
    rng = np.random.default_rng(0)
    fields = [navier_stokes.gaussian_random_field(rng, n) for _ in range(1000)]
    assert np.mean(np.square(fields)) == pytest.approx(np.sum(amplitude**2), rel=0.1)


@pytest.mark.parametrize("library", [lambda: None, lambda: TorchFft("cpu")], ids=["scipy", "torch"])
def test_blow_up_is_an_error(library: Callable[[], TorchFft | None]) -> None:
    n = 16
    wild = Solver(n, 0.0, np.zeros((n, n)), courant=np.inf, largest_step=1.0, transforms=library())
    with np.errstate(all="ignore"), pytest.raises(DataError, match="left the finite range"):
        solve(wild, random_flow(n, strength=1e6), 50.0)
