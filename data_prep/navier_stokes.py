"""Navier-Stokes in vorticity form on the unit torus, as the FNO authors set it up: w_t + u . grad w = nu Laplace w + f.

Pseudo-spectral with 2/3 dealiasing. Diffusion is exact (integrating factor), advection is fourth-order Runge-Kutta
with a step from the Courant number, so a fine fixed step is not needed. One sample at a time: sample i never depends on
its neighbours.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.fft import fft2, irfft2, rfft2

from geomano_hpc.errors import DataError

Field = npt.NDArray[np.float64]
Spectrum = npt.NDArray[np.complex128]


def gaussian_random_field(rng: np.random.Generator, n: int, alpha: float = 2.5, tau: float = 7.0) -> Field:
    """The initial vorticity: periodic, zero mean, covariance tau^(2 alpha - 2) (-Laplace + tau^2)^-alpha."""
    k = np.fft.fftfreq(n, 1.0 / n)
    laplace = 4 * np.pi**2 * (k[:, None] ** 2 + k[None, :] ** 2)
    amplitude = np.sqrt(2.0) * tau ** (alpha - 1) * (laplace + tau**2) ** (-alpha / 2)
    amplitude[0, 0] = 0.0
    noise = (rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))) / np.sqrt(2.0)  # of unit variance
    return np.asarray(fft2(amplitude * noise).real)


def forcing(n: int) -> Field:
    """f = 0.1 (sin 2 pi (x + y) + cos 2 pi (x + y)) at the points i / n."""
    x = np.arange(n) / n
    phase = 2 * np.pi * (x[:, None] + x[None, :])
    return np.asarray(0.1 * (np.sin(phase) + np.cos(phase)))


class Solver:
    """Steps a vorticity field of n x n points in time."""

    def __init__(
        self, n: int, viscosity: float, force: Field, courant: float = 0.7, largest_step: float = 0.05
    ) -> None:
        self.n, self.courant, self.largest_step = n, courant, largest_step
        k_x = 2 * np.pi * np.fft.fftfreq(n, 1.0 / n)[:, None]
        k_y = 2 * np.pi * np.fft.rfftfreq(n, 1.0 / n)[None, :]
        laplace = k_x**2 + k_y**2
        inverse = np.where(laplace > 0, 1.0 / np.where(laplace > 0, laplace, 1.0), 0.0)
        # From the vorticity's spectrum: u = d psi / dy, v = - d psi / dx with -Laplace psi = w, then w_x, w_y.
        self.derivatives = np.stack([1j * k_y * inverse, -1j * k_x * inverse, 1j * k_x + 0 * k_y, 1j * k_y + 0 * k_x])
        self.decay = -viscosity * laplace
        cut = 2 * np.pi * n / 3
        self.kept = (np.abs(k_x) < cut) & (np.abs(k_y) < cut)
        self.force = rfft2(force)

    def _tendency(self, w: Spectrum) -> tuple[Spectrum, float]:
        """Forcing minus advection, and the largest speed."""
        u, v, w_x, w_y = irfft2(self.derivatives * w, s=(self.n, self.n))
        speed = float(np.abs(u).max() + np.abs(v).max())
        return np.where(self.kept, self.force - rfft2(u * w_x + v * w_y), 0.0), speed

    def _runge_kutta(self, w: Spectrum, k1: Spectrum, dt: float) -> Spectrum:
        half = np.exp(0.5 * dt * self.decay)
        full = half * half
        k2, _ = self._tendency(half * (w + 0.5 * dt * k1))
        k3, _ = self._tendency(half * w + 0.5 * dt * k2)
        k4, _ = self._tendency(full * w + dt * half * k3)
        return np.asarray(full * w + dt / 6 * (full * k1 + 2 * half * (k2 + k3) + k4))

    def advance(self, w: Spectrum, duration: float) -> Spectrum:
        """Integrate over a duration with equal steps below the Courant limit, chosen anew as the flow changes."""
        left = duration
        while left > 0:
            k1, speed = self._tendency(w)
            if not np.isfinite(speed):
                raise DataError(
                    f"Navier-Stokes solver: the vorticity left the finite range on the {self.n} x {self.n} grid"
                )
            limit = min(self.largest_step, self.courant / (self.n * max(speed, 1e-12)))
            dt = left / np.ceil(left / limit)
            w = self._runge_kutta(w, k1, dt)
            left = left - dt if left - dt > 1e-12 * duration else 0.0
        return w


def sample(
    seed: int,
    index: int,
    n: int,
    viscosity: float,
    frames: int = 20,
    initial: Callable[..., Field] = gaussian_random_field,
) -> tuple[Field, Field]:
    """Sample `index` of the data set `seed`: vorticity at t = 0 [n, n] and at t = 1 .. frames [n, n, frames]."""
    w0 = initial(np.random.default_rng([seed, index]), n)
    solver = Solver(n, viscosity, forcing(n))
    w = rfft2(w0)
    record = np.empty((n, n, frames))
    for frame in range(frames):
        w = solver.advance(w, 1.0)
        record[..., frame] = irfft2(w, s=(n, n))
    return w0, record
