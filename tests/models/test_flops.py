import pytest

from geomano_hpc.config import load_recipe
from geomano_hpc.models import build_model, count_parameters
from geomano_hpc.models.common.flops import count_by_part, part_table, scan_flops
from geomano_hpc.models.fno import FnoConfig
from geomano_hpc.models.geomano import GeomanoConfig
from geomano_hpc.models.transolver import TransolverConfig


def test_parameters_by_part_add_up() -> None:
    for config, channels in ((load_recipe("darcy").model, 1), (TransolverConfig(depth=2), 3), (FnoConfig(), 1)):
        parts = count_by_part(config, channels, 1, (12, 12))
        assert sum(part.parameters for part in parts) == count_parameters(build_model(config, channels, 1))


@pytest.mark.parametrize("D", [8, 16])
def test_flops_of_the_dense_parts_are_those_of_their_matrix_products(D: int) -> None:
    """Two layers on 5 x 6 points, by hand. With 16 channels the kernel convolves, with 8 torch."""
    config = GeomanoConfig(depth=2, embedding=D, dstate=3, correction="none")
    found = {part.name: part.flops for part in count_by_part(config, 1, 1, (5, 6))}
    points = 30
    projections = D * D + D * 9 + D * 4 * (1 + 2 * 3) + D * D  # in, 3 x 3 by channel, to dt, B, C, out
    assert found == {
        "encoder": 2 * points * (D + D * D),
        "layers: kernel": 2 * 2 * points * projections,
        "layers: kernel_norm": 0,
        "layers: mlp": 2 * 2 * points * 2 * D * 2 * D,
        "layers: mlp_norm": 0,
        "decoder": 2 * points * D,
        "scan": 2 * points * 4 * D * ((3 + 4 + 2) * 3 + 2 * 1 + 3 + 1 + 2),
    }


@pytest.mark.parametrize(("kind", "R", "per_state"), [("1d", None, 7), ("2d", None, 9), ("2d", (4, 8, 3), 11)])
def test_scan_grows_with_states_and_positions(kind: str, R: tuple[int, ...] | None, per_state: int) -> None:
    def flops(height: int, N: int) -> int:
        return scan_flops((2, height, 6, 8), (2, height, 6, 4, 8), (4, 8, N), 0, 0, 0, R, 0, None, [0], kind)

    assert flops(10, 3) == 2 * flops(5, 3)
    assert flops(5, 4) - flops(5, 3) == 2 * 5 * 6 * 4 * 8 * per_state


def test_counting_computes_nothing() -> None:
    """The paper's Navier-Stokes model on a grid that would need hundreds of gigabytes."""
    parts = count_by_part(load_recipe("navier_stokes").model, 10, 1, (4096, 4096))
    assert sum(part.flops for part in parts) > 1e14
    lines = part_table(parts)
    assert lines[-1].startswith("total")
    assert "4,069,889" in lines[-1]
