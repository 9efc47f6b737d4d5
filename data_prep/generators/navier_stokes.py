"""Navier-Stokes in vorticity form on the unit torus, as the FNO authors set it up: random vorticity, steady forcing."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import scipy  # its parts load when they are used

from geomano_hpc.data_prep.generators.fft import Fft
from geomano_hpc.data_prep.generators.vorticity import Solver

Field = npt.NDArray[np.float64]

FRAMES = 20
VERSION = 2  # of the numbers. 1 took five transforms a stage, and let modes beyond two thirds advect.


def gaussian_random_field(rng: np.random.Generator, n: int, alpha: float = 2.5, tau: float = 7.0) -> Field:
    """The initial vorticity: periodic, zero mean, covariance tau^(2 alpha - 2) (-Laplace + tau^2)^-alpha."""
    k = np.fft.fftfreq(n, 1.0 / n)
    laplace = 4 * np.pi**2 * (k[:, None] ** 2 + k[None, :] ** 2)
    amplitude = np.sqrt(2.0) * tau ** (alpha - 1) * (laplace + tau**2) ** (-alpha / 2)
    amplitude[0, 0] = 0.0
    noise = (rng.standard_normal((n, n)) + 1j * rng.standard_normal((n, n))) / np.sqrt(2.0)  # of unit variance
    return np.asarray(scipy.fft.fft2(amplitude * noise).real)


def forcing(n: int) -> Field:
    """f = 0.1 (sin 2 pi (x + y) + cos 2 pi (x + y)) at the points i / n."""
    x = np.arange(n) / n
    phase = 2 * np.pi * (x[:, None] + x[None, :])
    return np.asarray(0.1 * (np.sin(phase) + np.cos(phase)))


def samples(
    seed: int,
    indices: Sequence[int],
    n: int,
    viscosity: float,
    frames: int = FRAMES,
    keep_every: int = 1,
    transforms: Fft | None = None,
) -> tuple[Field, Field]:
    """Samples of the data set `seed`, stepped together: vorticity at t = 0 [B, m, m], at t = 1 .. [B, m, m, frames].

    Solved on n x n points, of which every `keep_every`-th is kept. Each sample depends on the seed and its index only.
    """
    solver = Solver(n, viscosity, forcing(n), transforms=transforms)
    w0 = np.stack([gaussian_random_field(np.random.default_rng([seed, index]), n) for index in indices])
    kept = np.s_[:, ::keep_every, ::keep_every]
    w = solver.to_spectrum(w0)
    record = []
    for _ in range(frames):
        w = solver.advance(w, 1.0)
        record.append(solver.to_field(w)[kept])
    return w0[kept], np.stack(record, axis=-1)
