import numpy as np
import pytest
from scipy.fft import irfft2, rfft2
from scipy.io import loadmat

from geomano_hpc.data_prep import navier_stokes
from geomano_hpc.data_prep.navier_stokes import Solver
from geomano_hpc.errors import DataError
from tests.real_data import FOLDER, needs_real_data


def grid(n: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(n) / n
    return np.meshgrid(x, x, indexing="ij")


def test_taylor_green_vortex_decays_exactly() -> None:
    n, viscosity, t = 32, 1e-2, 1.0
    x, y = grid(n)
    w0 = np.sin(2 * np.pi * x) * np.sin(2 * np.pi * y)
    w = irfft2(Solver(n, viscosity, np.zeros((n, n))).advance(rfft2(w0), t), s=(n, n))
    np.testing.assert_allclose(w, w0 * np.exp(-8 * np.pi**2 * viscosity * t), atol=1e-12)


def test_fourth_order_in_time() -> None:
    n = 32
    w0 = rfft2(5 * navier_stokes.gaussian_random_field(np.random.default_rng(0), n))

    def solve(step: float) -> np.ndarray:
        solver = Solver(n, 1e-3, navier_stokes.forcing(n), courant=np.inf, largest_step=step)
        return irfft2(solver.advance(w0, 1.0), s=(n, n))

    exact = solve(1 / 320)
    coarse, fine = (np.abs(solve(step) - exact).max() for step in (1 / 20, 1 / 40))
    assert 12 < coarse / fine < 20  # 2^4


def test_enstrophy_without_forcing_only_decays() -> None:
    n = 32
    solver = Solver(n, 1e-3, np.zeros((n, n)))
    w = rfft2(navier_stokes.gaussian_random_field(np.random.default_rng(1), n))
    enstrophy = []
    for _ in range(4):
        enstrophy.append(float(np.mean(irfft2(w, s=(n, n)) ** 2)))
        w = solver.advance(w, 0.5)
    assert sorted(enstrophy, reverse=True) == enstrophy


@needs_real_data
def test_solver_follows_the_fno_authors_solution() -> None:
    """They solve at 256 x 256 and keep every fourth point; we start from those points on a 128 x 128 grid."""
    published = loadmat(FOLDER / "fno_generator" / "ns_V1e-5_N2_T20_s256to64.mat")
    n = 128
    coarse = np.fft.fftshift(np.fft.fft2(published["a"][0].astype(float)))
    padded = np.zeros((n, n), complex)
    padded[32:96, 32:96] = coarse * (n / 64) ** 2
    w = rfft2(np.fft.ifft2(np.fft.ifftshift(padded)).real)
    solver = Solver(n, 1e-5, navier_stokes.forcing(n))
    for frame in range(10):
        w = solver.advance(w, 1.0)
        truth = published["u"][0, ..., frame]
        found = irfft2(w, s=(n, n))[::2, ::2]
        assert np.linalg.norm(found - truth) / np.linalg.norm(truth) < 0.02


def test_initial_vorticity_has_the_variance_of_its_covariance() -> None:
    n, alpha, tau = 16, 2.5, 7.0
    k = np.fft.fftfreq(n, 1 / n)
    amplitude = tau ** (alpha - 1) * (4 * np.pi**2 * (k[:, None] ** 2 + k[None, :] ** 2) + tau**2) ** (-alpha / 2)
    amplitude[0, 0] = 0.0
    rng = np.random.default_rng(0)
    fields = [navier_stokes.gaussian_random_field(rng, n) for _ in range(1000)]
    assert np.mean(np.square(fields)) == pytest.approx(np.sum(amplitude**2), rel=0.1)


def test_blow_up_is_an_error() -> None:
    n = 16
    wild = Solver(n, 0.0, np.zeros((n, n)), courant=np.inf, largest_step=1.0)
    w = rfft2(1e6 * navier_stokes.gaussian_random_field(np.random.default_rng(0), n))
    with np.errstate(all="ignore"), pytest.raises(DataError, match="left the finite range"):
        wild.advance(w, 50.0)
