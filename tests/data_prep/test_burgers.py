import numpy as np
import pytest
import torch
from scipy.fft import irfft, rfft

from geomano_hpc.data_prep.generators import burgers
from geomano_hpc.errors import DataError
from tests.support.real_data import FOLDER, needs_real_data


def cole_hopf(u0: np.ndarray, viscosity: float, t: float) -> np.ndarray:
    """Exact: u = m - 2 nu (log phi)_x in the frame that moves with the mean m, where phi solves the heat equation."""
    n = len(u0)
    k = np.arange(n // 2 + 1)
    derivative = 2j * np.pi * k
    spectrum = rfft(u0)
    mean = spectrum[0].real / n
    spectrum[0] = 0.0
    integral = irfft(spectrum / np.where(k > 0, derivative, 1.0), n)
    phi = rfft(np.exp(-integral / (2 * viscosity))) * np.exp(-viscosity * (2 * np.pi * k) ** 2 * t)
    u = -2 * viscosity * irfft(derivative * phi, n) / irfft(phi, n)
    return mean + irfft(rfft(u) * np.exp(-derivative * mean * t), n)


@pytest.mark.parametrize("viscosity", [0.1, 0.01])
def test_solver_agrees_with_the_cole_hopf_solution(viscosity: float) -> None:
    x = np.arange(512) / 512
    u0 = 0.3 + np.sin(2 * np.pi * x) + 0.5 * np.cos(4 * np.pi * x + 1)
    found = burgers.Solver(512, viscosity).advance(u0, 1.0)
    np.testing.assert_allclose(found, cole_hopf(u0, viscosity, 1.0), atol=1e-9)


def test_tighter_tolerance_takes_more_steps_and_errs_less() -> None:
    u0 = burgers.gaussian_random_field(np.random.default_rng(0), 256)
    exact = cole_hopf(u0, 0.05, 0.5)
    errors, steps = [], []
    for tolerance in (1e-4, 1e-7):
        solver = burgers.Solver(256, 0.05, tolerance)
        errors.append(np.abs(solver.advance(u0, 0.5) - exact).max())
        steps.append(solver.steps)
    assert errors[1] < errors[0] / 100
    assert steps[0] < steps[1] < 30 * steps[0]  # 1000^(1/5) = 4, were the steps limited by accuracy alone


@needs_real_data
def test_solver_follows_neuraloperators_samples() -> None:
    """17 frames on 16 points at viscosity 0.01. They fit a spacing of 0.06, not 1/16: the last is at t = 0.96."""
    given = torch.load(FOLDER / "neuralop" / "burgers_test_16.pt", weights_only=True)
    n = 256
    for x, y in zip(given["x"][:4].numpy(), given["y"][:4].numpy(), strict=True):
        spectrum = np.zeros(n // 2 + 1, complex)
        spectrum[:8] = rfft(x)[:8] * n / 16
        u = irfft(spectrum, n)
        solver = burgers.Solver(n, 0.01)
        for frame in range(1, 17):
            u = solver.advance(u, 0.06)
            assert np.linalg.norm(u[:: n // 16] - y[frame]) / np.linalg.norm(y[frame]) < 2e-3


def test_mean_is_conserved_and_energy_only_decays() -> None:
    u0 = 0.7 + burgers.gaussian_random_field(np.random.default_rng(2), 128)
    u1 = burgers.Solver(128, 0.05).advance(u0, 1.0)
    assert u1.mean() == pytest.approx(u0.mean(), abs=1e-12)
    assert np.mean(u1**2) < np.mean(u0**2)


def test_field_has_the_variance_of_its_covariance_and_zero_mean() -> None:
    n = 64
    k = np.arange(1, n // 2)
    rng = np.random.default_rng(0)
    fields = np.array([burgers.gaussian_random_field(rng, n) for _ in range(4000)])
    assert np.mean(fields**2) == pytest.approx(2 * np.sum((25 / (4 * np.pi**2 * k**2 + 25)) ** 2), rel=0.05)
    np.testing.assert_allclose(fields.mean(axis=1), 0.0, atol=1e-12)


def test_finer_grid_gives_the_same_sample() -> None:
    coarse, fine = burgers.sample(0, 3, 128, 0.1), burgers.sample(0, 3, 1024, 0.1, keep_every=8)
    np.testing.assert_allclose(coarse[0], fine[0], atol=0.02)  # the shortest waves of the rough start are missing
    np.testing.assert_allclose(coarse[1], fine[1], atol=1e-7)  # and are gone at t = 1


def test_unresolved_shock_is_an_error() -> None:
    x = np.arange(32) / 32
    with pytest.raises(DataError, match=r"32 points do not resolve the shocks at viscosity 0\.001"):
        burgers.Solver(32, 1e-3).advance(np.sin(2 * np.pi * x), 1.0)


def test_blow_up_is_an_error() -> None:
    with np.errstate(all="ignore"), pytest.raises(DataError, match="left the finite range on 16 points"):
        burgers.Solver(16, 0.1).advance(np.full(16, np.nan), 1.0)


def test_sample_depends_on_seed_and_index_only() -> None:
    first = burgers.sample(0, 3, 64, 0.1)
    assert all(np.array_equal(a, b) for a, b in zip(first, burgers.sample(0, 3, 64, 0.1), strict=True))
    assert not np.array_equal(first[1], burgers.sample(0, 4, 64, 0.1)[1])
    assert not np.array_equal(first[1], burgers.sample(1, 3, 64, 0.1)[1])
