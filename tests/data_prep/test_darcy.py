import numpy as np
import pytest
from scipy.io import loadmat
from scipy.sparse import diags
from scipy.sparse.linalg import spsolve

from geomano_hpc.data_prep.generators import darcy
from geomano_hpc.errors import DataError
from tests.support.real_data import FOLDER, needs_real_data


def direct_solution(a: np.ndarray) -> np.ndarray:
    """The same five-point scheme as a sparse matrix, solved directly."""
    n = a.shape[0]
    m, step = n - 2, 1.0 / (n - 1)
    north, south = 0.5 * (a[:-2, 1:-1] + a[1:-1, 1:-1]), 0.5 * (a[2:, 1:-1] + a[1:-1, 1:-1])
    west, east = 0.5 * (a[1:-1, :-2] + a[1:-1, 1:-1]), 0.5 * (a[1:-1, 2:] + a[1:-1, 1:-1])
    centre = north + south + west + east
    west_, east_ = west.copy(), east.copy()
    west_[:, 0], east_[:, -1] = 0.0, 0.0
    matrix = diags(
        [centre.ravel(), -east_.ravel()[:-1], -west_.ravel()[1:], -south.ravel()[:-m], -north.ravel()[m:]],
        [0, 1, -1, m, -m],
        format="csc",
    )
    return spsolve(matrix / step**2, np.ones(m * m)).reshape(m, m)


def medium(n: int, seed: int = 0) -> np.ndarray:
    return darcy.threshold(darcy.gaussian_random_field(np.random.default_rng(seed), n))


@pytest.mark.parametrize("n", [4, 9, 40, 129])
def test_solver_agrees_with_a_sparse_direct_solve(n: int) -> None:
    a = medium(n)
    direct = direct_solution(a)
    np.testing.assert_allclose(darcy.solve_on_nodes(a), direct, atol=1e-9 * direct.max())
    np.testing.assert_allclose(darcy.solve_on_nodes(a, 1e-12), direct, atol=1e-12 * direct.max())


@pytest.mark.parametrize("n", [20, 421])
def test_true_residual_is_below_what_is_promised(n: int) -> None:
    """Of -div(a grad u) = 1, not the one that the iteration carries along."""
    a = medium(n)
    padded = np.zeros((n, n))
    padded[1:-1, 1:-1] = darcy.solve_on_nodes(a)
    left = np.empty((n - 2, n - 2))
    darcy.FivePointOperator(a).apply(padded, out=left)
    assert np.linalg.norm(left - 1.0) < 1e-8 * (n - 2)


def test_iterations_do_not_grow_with_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    apply = darcy.SinePoissonSolver.apply

    def counted(self: darcy.SinePoissonSolver, r: np.ndarray, out: np.ndarray) -> None:
        counts[-1] += 1
        apply(self, r, out)

    monkeypatch.setattr(darcy.SinePoissonSolver, "apply", counted)
    for n in (41, 161, 321):
        counts.append(0)
        darcy.solve_on_nodes(medium(n, seed=n))
    assert max(counts) < 25


def test_solution_for_a_constant_coefficient_is_the_known_series() -> None:
    """-a Laplace u = 1 on the unit square: u(1/2, 1/2) = 0.0736713532815 / a."""
    u = darcy.solve_on_nodes(np.full((129, 129), 3.0))
    assert u[63, 63] == pytest.approx(0.07367135328 / 3, rel=1e-4)


@needs_real_data
def test_solver_reproduces_the_fno_authors_solutions() -> None:
    published = loadmat(FOLDER / "fno_generator" / "darcy_r421_N4.mat")
    for coefficient, solution in zip(published["coeff"][:2], published["sol"][:2], strict=True):
        found = darcy.solve(coefficient)
        assert np.linalg.norm(found - solution) / np.linalg.norm(solution) < 2e-3


def test_field_has_the_variance_of_its_covariance() -> None:
    """Parseval: the mean square of the field is the sum of the squared amplitudes of its modes."""
    n, tau = 32, 3.0
    k = np.arange(n)
    amplitude = tau / (np.pi**2 * (k[:, None] ** 2 + k[None, :] ** 2) + tau**2)
    amplitude[0, 0] = 0.0
    rng = np.random.default_rng(0)
    found = np.mean([np.mean(darcy.gaussian_random_field(rng, n) ** 2) for _ in range(400)])
    assert found == pytest.approx(np.sum(amplitude**2), rel=0.1)


@pytest.mark.parametrize("wrong", [0.0, -4.0, np.nan])
def test_coefficient_that_is_not_positive_is_an_error(wrong: float) -> None:
    a = np.ones((8, 8))
    a[3, 3] = wrong
    with pytest.raises(DataError, match="must be positive"):
        darcy.solve_on_nodes(a)


def test_solver_that_does_not_converge_is_an_error() -> None:
    with pytest.raises(DataError, match="after 2 iterations"):
        darcy.solve_on_nodes(medium(20), most_iterations=2)


def test_sample_depends_on_seed_and_index_only() -> None:
    first = darcy.sample(0, 3, 16)
    again = darcy.sample(0, 3, 16)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[1], darcy.sample(0, 4, 16)[1])
    assert not np.array_equal(first[1], darcy.sample(1, 3, 16)[1])
