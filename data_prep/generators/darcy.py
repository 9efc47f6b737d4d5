"""Darcy flow -div(a grad u) = 1 on the unit square, u = 0 on the boundary, as the FNO authors make it.

Fields live at the cell centres (i + 1/2) / n. The equation is solved on the n x n nodes i / (n - 1): the coefficient is
interpolated to the nodes, the solution back to the centres. Our choice: the coefficient is interpolated linearly, since
a cubic spline, as the authors use, overshoots at the jumps, even below zero. The solutions differ by about 0.1 %.
"""

import numpy as np
import numpy.typing as npt
import scipy  # its parts load when they are used

from geomano_hpc.errors import DataError

Field = npt.NDArray[np.float64]

RESIDUAL = 5e-9  # relative to the right-hand side; 1e-8 is promised
VERSION = 2  # of the numbers: another one makes other bits. 1 solved to 1e-10 with transforms in double precision.


def gaussian_random_field(rng: np.random.Generator, n: int, alpha: float = 2.0, tau: float = 3.0) -> Field:
    """A sample of N(0, (-Laplace + tau^2)^-alpha) with zero Neumann boundary and zero mean, at the cell centres."""
    k = np.arange(n)
    laplace = np.pi**2 * (k[:, None] ** 2 + k[None, :] ** 2)
    coefficients = n * tau ** (alpha - 1) * (laplace + tau**2) ** (-alpha / 2) * rng.standard_normal((n, n))
    coefficients[0, 0] = 0.0
    return np.asarray(scipy.fft.idctn(coefficients, norm="ortho"))


def threshold(field: Field) -> Field:
    """The two-phase medium of the benchmark: 12 where the field is not negative, 3 elsewhere."""
    return np.where(field >= 0, 12.0, 3.0)


def solve(coefficient: Field, tolerance: float = RESIDUAL) -> Field:
    """The pressure at the cell centres for a coefficient at the cell centres."""
    n = coefficient.shape[0]
    centres = (np.arange(n) + 0.5) / n
    nodes = np.linspace(0.0, 1.0, n)
    inside = np.clip(nodes, centres[0], centres[-1])
    a = scipy.interpolate.RectBivariateSpline(centres, centres, coefficient, kx=1, ky=1)(inside, inside)
    u = np.zeros((n, n))
    u[1:-1, 1:-1] = solve_on_nodes(a, tolerance)
    return np.asarray(scipy.interpolate.RectBivariateSpline(nodes, nodes, u)(centres, centres))


class FivePointOperator:
    """u -> -div(a grad u) on the interior nodes by second-order differences; faces take the mean of their two nodes."""

    def __init__(self, a: Field) -> None:
        n = a.shape[0]
        self.rows = 0.5 * (n - 1) ** 2 * (a[1:, 1:-1] + a[:-1, 1:-1])  # faces between nodes i and i + 1
        self.columns = 0.5 * (n - 1) ** 2 * (a[1:-1, 1:] + a[1:-1, :-1])
        self._flux_rows = np.empty_like(self.rows)
        self._flux_columns = np.empty_like(self.columns)

    def apply(self, u: Field, out: Field) -> None:
        """`u` [n, n] carries its zero boundary, so that no face is special; `out` [n - 2, n - 2] is the interior."""
        rows, columns = self._flux_rows, self._flux_columns
        np.subtract(u[1:, 1:-1], u[:-1, 1:-1], out=rows)
        rows *= self.rows
        np.subtract(u[1:-1, 1:], u[1:-1, :-1], out=columns)
        columns *= self.columns
        np.subtract(rows[:-1], rows[1:], out=out)
        out += columns[:, :-1]
        out -= columns[:, 1:]


class SinePoissonSolver:
    """r -> the discrete inverse of -Laplace with zero boundary, by two sine transforms of type I (their own inverse).

    In single precision, which halves its cost: as a preconditioner it decides how fast the iteration converges, never
    to what, since the residual is kept in double precision.
    """

    def __init__(self, n: int) -> None:
        modes = (2.0 - 2.0 * np.cos(np.pi * np.arange(1, n - 1) / (n - 1))) * (n - 1) ** 2
        twice = (2.0 * (n - 1)) ** 2  # what two unnormalised transforms multiply by
        self._inverse = (1.0 / (twice * (modes[:, None] + modes[None, :]))).astype(np.float32)

    def apply(self, r: Field, out: Field) -> None:
        spectrum = scipy.fft.dstn(r.astype(np.float32), type=1, overwrite_x=True)
        spectrum *= self._inverse
        out[...] = scipy.fft.dstn(spectrum, type=1, overwrite_x=True)


def solve_on_nodes(a: Field, tolerance: float = RESIDUAL, most_iterations: int = 1000) -> Field:
    """Conjugate gradients on the five-point scheme, preconditioned by the Poisson solver. Returns the interior nodes.

    The contrast of `a` bounds the condition number (4 in the benchmark), so the number of iterations does not grow with
    the grid. All vectors are updated in place.
    """
    if not a.min() > 0:
        raise DataError(f"Darcy solver: the coefficient lies in [{a.min():.3g}, {a.max():.3g}] and must be positive")
    n = a.shape[0]
    operator, poisson = FivePointOperator(a), SinePoissonSolver(n)
    u = np.zeros((n - 2, n - 2))
    residual = np.ones_like(u)
    target = tolerance * _norm(residual)
    padded = np.zeros((n, n))
    direction = padded[1:-1, 1:-1]
    along, scratch = np.empty_like(u), np.empty_like(u)
    previous = np.inf
    for _ in range(most_iterations):
        poisson.apply(residual, out=scratch)
        rz = _dot(residual, scratch)
        direction *= rz / previous
        direction += scratch
        operator.apply(padded, out=along)
        length = rz / _dot(direction, along)
        np.multiply(direction, length, out=scratch)
        u += scratch
        along *= length
        residual -= along
        if _norm(residual) <= target:
            return u
        previous = rz
    raise DataError(
        f"Darcy solver: residual {_norm(residual):.1e}, wanted {target:.1e}, after {most_iterations} iterations"
    )


def _dot(x: Field, y: Field) -> float:
    """Not BLAS's, whose sums, and so whose bits, depend on the number of threads."""
    return float(np.einsum("ij,ij->", x, y))


def _norm(x: Field) -> float:
    return float(np.sqrt(_dot(x, x)))


def sample(seed: int, index: int, n: int) -> tuple[Field, Field]:
    """Sample `index` of the data set `seed`: (coefficient, solution). The same bits whoever makes it, in any order."""
    rng = np.random.default_rng([seed, index])
    coefficient = threshold(gaussian_random_field(rng, n))
    return coefficient, solve(coefficient)
