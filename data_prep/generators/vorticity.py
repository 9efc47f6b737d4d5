"""The vorticity equation w_t + u . grad w = nu Laplace w + f on the unit torus, stepped in time.

Pseudo-spectral with 2/3 dealiasing: modes from a third of the grid on neither advect nor are advected. Advection is
fourth-order Runge-Kutta in the form of Basdevant (1983), w_t = (d_yy - d_xx)(u v) - d_xy (v^2 - u^2): two transforms to
the grid and two back, where u . grad w takes five. Diffusion is Crank-Nicolson over each half step, which makes the
whole second order in the step, with an error that vanishes with the viscosity.

B batch, X x Y grid of n x n points; spectra have n x (n // 2 + 1). Every sample of a batch has its own time step, so
that no sample depends on its neighbours.
"""

import numpy as np
import numpy.typing as npt

from geomano_hpc.data_prep.generators.fft import Array, Fft, ScipyFft
from geomano_hpc.errors import DataError

Field = npt.NDArray[np.float64]

COURANT = 1.0  # of dt n max(|u| + |v|); Runge-Kutta's limit is 2.83 / (2 pi / 3) = 1.35
LARGEST_STEP = 0.05


class Solver:
    """Steps spectra of vorticity in time. `transforms_done` counts 2D transforms of a batch."""

    def __init__(
        self,
        n: int,
        viscosity: float,
        force: Field,
        courant: float = COURANT,
        largest_step: float = LARGEST_STEP,
        transforms: Fft | None = None,
    ) -> None:
        self.n, self.courant = n, courant
        self.library = transforms or ScipyFft()
        self.transforms_done = 0
        k_x = 2 * np.pi * np.fft.fftfreq(n, 1.0 / n)[:, None]
        k_y = 2 * np.pi * np.fft.rfftfreq(n, 1.0 / n)[None, :]
        laplace = k_x**2 + k_y**2
        inverse = np.where(laplace > 0, 1.0 / np.where(laplace > 0, laplace, 1.0), 0.0)
        cut = 2 * np.pi * n / 3
        kept = (np.abs(k_x) < cut) & (np.abs(k_y) < cut)
        array = self.library.array
        # From i times the vorticity's spectrum: u = d psi / dy, v = - d psi / dx with -Laplace psi = w.
        self._to_u, self._to_v = array(kept * k_y * inverse), array(kept * -k_x * inverse)
        self._from_uv, self._from_vv_uu = array(kept * (k_x**2 - k_y**2)), array(kept * k_x * k_y)
        self._force = array(kept * np.fft.rfft2(force))
        self._decay = array(viscosity * laplace)
        # Crank-Nicolson damps a mode monotonically while nu k^2 dt / 4 < 1: half of that for the finest mode in motion.
        self.largest_step = min(largest_step, 2.0 / max(viscosity * float((kept * laplace).max()), 1e-12))

    def to_spectrum(self, w_BXY: Field) -> Array:
        return self.library.forward(self.library.array(w_BXY))

    def to_field(self, w: Array) -> Field:
        return self.library.numpy(self.library.backward(w, self.n))

    def velocity(self, w: Array) -> tuple[Array, Array]:
        """Of the modes that are kept."""
        turned = 1j * w
        self.transforms_done += 2
        return self.library.backward(turned * self._to_u, self.n), self.library.backward(turned * self._to_v, self.n)

    def tendency(self, u: Array, v: Array) -> Array:
        """Forcing minus advection, from the velocity."""
        self.transforms_done += 2
        tendency = self.library.forward(u * v) * self._from_uv
        tendency += self.library.forward((v - u) * (v + u)) * self._from_vv_uu
        tendency += self._force
        return tendency

    def _runge_kutta(self, w: Array, k1: Array, dt: Array) -> Array:
        """The classical method on exp(-t nu Laplace) w, with Crank-Nicolson's quotient for the exponential."""
        quarter = (0.25 * dt) * self._decay
        half = (1.0 - quarter) / (1.0 + quarter)
        w_half = half * w
        halfway = 0.5 * dt
        k1 = half * k1
        k2 = self.tendency(*self.velocity(w_half + halfway * k1))
        k3 = self.tendency(*self.velocity(w_half + halfway * k2))
        w_full = half * w_half
        k3 = half * k3
        k4 = self.tendency(*self.velocity(w_full + dt * k3))
        # half k1 + 2 half k2 + 2 half k3 + k4, where k1 and k3 carry their factor already
        return w_full + (dt / 6) * (half * (k1 + 2 * k2) + 2 * k3 + k4)

    def advance(self, w: Array, duration: float) -> Array:
        """Integrate spectra [B, ...] over a duration, each with steps below its Courant limit as the flow changes."""
        left = np.full(len(w), duration)
        while left.any():
            u, v = self.velocity(w)
            speed = self.library.largest(abs(u) + abs(v))
            if not np.isfinite(speed).all():
                raise DataError(
                    f"Navier-Stokes solver: the vorticity left the finite range on the {self.n} x {self.n} grid"
                )
            limit = np.minimum(self.largest_step, self.courant / (self.n * np.maximum(speed, 1e-12)))
            dt = left / np.maximum(np.ceil(left / limit), 1.0)  # 0 where a sample has arrived: it stands still
            w = self._runge_kutta(w, self.tendency(u, v), self.library.array(dt[:, None, None]))
            left = np.where(left - dt > 1e-12 * duration, left - dt, 0.0)
        return w
