"""Burgers' equation u_t + (u^2 / 2)_x = nu u_xx on the unit circle, from a random u at t = 0 to u at t = 1.

The setup is the FNO authors': u(., 0) ~ N(0, 625 (-Laplace + 25)^-2) with zero mean, nu = 0.1 unless told. The solver
is ours: pseudo-spectral with 2/3 dealiasing, diffusion exact by an integrating factor, advection by the embedded
Runge-Kutta pair of Dormand and Prince of order 5 and 4, whose difference chooses the time step.
"""

import numpy as np
import numpy.typing as npt
import scipy  # its parts load when they are used

from geomano_hpc.errors import DataError

Field = npt.NDArray[np.float64]
Spectrum = npt.NDArray[np.complex128]

TOLERANCE = 1e-9  # of the error of one step, relative to the largest |u| at t = 0
VERSION = 1

# Dormand and Prince (1980): times of the stages, their weights, and fifth order minus fourth.
_TIMES = np.array([0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0])
_WEIGHTS = [
    np.array([1 / 5]),
    np.array([3 / 40, 9 / 40]),
    np.array([44 / 45, -56 / 15, 32 / 9]),
    np.array([19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729]),
    np.array([9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656]),
    np.array([35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84]),
]
_ERROR = np.array([71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40])


def gaussian_random_field(rng: np.random.Generator, n: int, alpha: float = 2.0, tau: float = 5.0) -> Field:
    """A sample of N(0, tau^(2 alpha) (-Laplace + tau^2)^-alpha), periodic, without the mean, at the points i / n.

    The waves are drawn from the longest on, so a finer grid gives the same function with more detail.
    """
    k = np.arange(1, (n + 1) // 2)
    waves = (rng.standard_normal((len(k), 2)) * [1, -1j]).sum(axis=1) / np.sqrt(2.0)  # cosines and sines
    spectrum = np.zeros(n // 2 + 1, complex)
    spectrum[k] = n * tau**alpha * (4 * np.pi**2 * k**2 + tau**2) ** (-alpha / 2) * waves
    return np.asarray(scipy.fft.irfft(spectrum, n))


class Solver:
    """Steps u of n points in time."""

    def __init__(self, n: int, viscosity: float, tolerance: float = TOLERANCE) -> None:
        self.n, self.viscosity, self.tolerance = n, viscosity, tolerance
        k = np.arange(n // 2 + 1)
        self._decay = -viscosity * (2 * np.pi * k) ** 2
        self._kept = 3 * k < n
        self._advection = -0.5j * 2 * np.pi * k * self._kept
        self.steps = 0

    def _tendency(self, w: Spectrum) -> Spectrum:
        u = scipy.fft.irfft(np.where(self._kept, w, 0.0), self.n)
        return np.asarray(self._advection * scipy.fft.rfft(u * u))

    def _step(self, w: Spectrum, dt: float, stages: Spectrum) -> tuple[Spectrum, float]:
        """The state after dt and its error. stages[0] is the tendency before, stages[6] becomes that after the step."""
        for stage in range(1, 7):
            # Everything known so far decays over the time between two stages.
            decay = np.exp((_TIMES[stage] - _TIMES[stage - 1]) * dt * self._decay)
            w = decay * w
            stages[:stage] *= decay
            now = w + dt * np.einsum("i,ik->k", _WEIGHTS[stage - 1], stages[:stage])
            stages[stage] = self._tendency(now)
        error = dt * np.einsum("i,ik->k", _ERROR, stages)
        return now, float(np.abs(error).sum()) * 2 / self.n  # bounds the largest error of u

    def advance(self, u: Field, duration: float) -> Field:
        w = np.asarray(scipy.fft.rfft(u))
        stages = np.empty((7, len(w)), complex)
        stages[0] = self._tendency(w)
        scale = self.tolerance * max(float(np.abs(u).max()), 1e-300)
        dt, left = 1e-2 * duration, duration
        while left > 0:
            dt = min(dt, left)
            tried = stages.copy()
            now, error = self._step(w, dt, tried)
            if not np.isfinite(error):
                raise DataError(f"Burgers solver: u left the finite range on {self.n} points")
            if error <= scale:
                w, left = now, left - dt if left - dt > 1e-12 * duration else 0.0
                stages[0] = tried[6]
                self.steps += 1
            dt *= min(5.0, max(0.2, 0.9 * (scale / max(error, 1e-300)) ** 0.2))
        self._check_resolved(w)
        return np.asarray(scipy.fft.irfft(w, self.n))

    def _check_resolved(self, w: Spectrum) -> None:
        """A shock thinner than the grid leaves waves of its own at the cut; they must be far below the solution."""
        moving = np.abs(w[1:][self._kept[1:]])
        if len(moving) > 8 and moving[-len(moving) // 8 :].max() > 1e-3 * moving.max():
            raise DataError(
                f"Burgers solver: {self.n} points do not resolve the shocks at viscosity {self.viscosity:g}; "
                "solve on a finer grid (--solve-grid)"
            )


def sample(seed: int, index: int, n: int, viscosity: float, keep_every: int = 1) -> tuple[Field, Field]:
    """Sample `index` of the data set `seed`: u at t = 0 and at t = 1, solved on n points, every so many kept."""
    u0 = gaussian_random_field(np.random.default_rng([seed, index]), n)
    return u0[::keep_every], Solver(n, viscosity).advance(u0, 1.0)[::keep_every]
