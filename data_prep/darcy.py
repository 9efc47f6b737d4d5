"""Darcy flow -div(a grad u) = 1 on the unit square, u = 0 on the boundary, as the FNO authors make it.

Fields live at the cell centres (i + 1/2) / n. The equation is solved on the n x n nodes i / (n - 1): the coefficient is
interpolated to the nodes, the solution back to the centres. Our choice: the coefficient is interpolated linearly, since
a cubic spline, as the authors use, overshoots at the jumps, even below zero. The solutions differ by about 0.1 %.
"""

import numpy as np
import numpy.typing as npt
from scipy.fft import dstn, idctn, idstn
from scipy.interpolate import RectBivariateSpline

from geomano_hpc.errors import DataError

Field = npt.NDArray[np.float64]


def gaussian_random_field(rng: np.random.Generator, n: int, alpha: float = 2.0, tau: float = 3.0) -> Field:
    """A sample of N(0, (-Laplace + tau^2)^-alpha) with zero Neumann boundary and zero mean, at the cell centres."""
    k = np.arange(n)
    laplace = np.pi**2 * (k[:, None] ** 2 + k[None, :] ** 2)
    coefficients = n * tau ** (alpha - 1) * (laplace + tau**2) ** (-alpha / 2) * rng.standard_normal((n, n))
    coefficients[0, 0] = 0.0
    return np.asarray(idctn(coefficients, norm="ortho"))


def threshold(field: Field) -> Field:
    """The two-phase medium of the benchmark: 12 where the field is not negative, 3 elsewhere."""
    return np.where(field >= 0, 12.0, 3.0)


def solve(coefficient: Field, tolerance: float = 1e-10) -> Field:
    """The pressure at the cell centres for a coefficient at the cell centres."""
    n = coefficient.shape[0]
    centres = (np.arange(n) + 0.5) / n
    nodes = np.linspace(0.0, 1.0, n)
    inside = np.clip(nodes, centres[0], centres[-1])
    a = RectBivariateSpline(centres, centres, coefficient, kx=1, ky=1)(inside, inside)
    u = np.zeros((n, n))
    u[1:-1, 1:-1] = solve_on_nodes(a, tolerance)
    return np.asarray(RectBivariateSpline(nodes, nodes, u)(centres, centres))


def solve_on_nodes(a: Field, tolerance: float = 1e-10, most_iterations: int = 1000) -> Field:
    """Second-order finite differences, solved by conjugate gradients with a sine-transform Poisson solver before them.

    Faces take the arithmetic mean of their nodes. The contrast of `a` bounds the condition number, so the number of
    iterations does not grow with the grid. Returns the interior nodes.
    """
    if not a.min() > 0:
        raise DataError(f"Darcy solver: the coefficient lies in [{a.min():.3g}, {a.max():.3g}] and must be positive")
    n = a.shape[0]
    step = 1.0 / (n - 1)
    rows = 0.5 * (a[1:, 1:-1] + a[:-1, 1:-1]) / step**2  # faces between nodes i and i + 1
    columns = 0.5 * (a[1:-1, 1:] + a[1:-1, :-1]) / step**2
    diagonal = rows[1:] + rows[:-1] + columns[:, 1:] + columns[:, :-1]

    def operator(u: Field) -> Field:
        result = diagonal * u
        result[1:] -= rows[1:-1] * u[:-1]
        result[:-1] -= rows[1:-1] * u[1:]
        result[:, 1:] -= columns[:, 1:-1] * u[:, :-1]
        result[:, :-1] -= columns[:, 1:-1] * u[:, 1:]
        return np.asarray(result)

    modes = (2.0 - 2.0 * np.cos(np.pi * np.arange(1, n - 1) / (n - 1))) / step**2
    poisson = modes[:, None] + modes[None, :]

    def precondition(r: Field) -> Field:
        return np.asarray(idstn(dstn(r, type=1) / poisson, type=1))

    right_hand_side = np.ones((n - 2, n - 2))
    u = np.zeros_like(right_hand_side)
    residual = right_hand_side.copy()
    z = precondition(residual)
    direction = z.copy()
    rz = float(np.vdot(residual, z))
    target = tolerance * float(np.linalg.norm(right_hand_side))
    for _ in range(most_iterations):
        step_along = operator(direction)
        length = rz / float(np.vdot(direction, step_along))
        u += length * direction
        residual -= length * step_along
        if np.linalg.norm(residual) <= target:
            return u
        z = precondition(residual)
        rz, previous = float(np.vdot(residual, z)), rz
        direction = z + (rz / previous) * direction
    reached = np.linalg.norm(residual)
    raise DataError(f"Darcy solver: residual {reached:.1e}, wanted {target:.1e}, after {most_iterations} iterations")


def sample(seed: int, index: int, n: int) -> tuple[Field, Field]:
    """Sample `index` of the data set `seed`: (coefficient, solution). The same bits whoever makes it, in any order."""
    rng = np.random.default_rng([seed, index])
    coefficient = threshold(gaussian_random_field(rng, n))
    return coefficient, solve(coefficient)
