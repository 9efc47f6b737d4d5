import pytest
import torch

from geomano_hpc.kernels import ScanOrder, order_set
from tests.support.scan_inputs import ALL_EIGHT


def traversal(order: ScanOrder, height: int = 3, width: int = 3) -> list[int]:
    """The points of a grid, numbered row by row, in the order in which they are visited."""
    grid = torch.arange(height * width).view(1, height, width)
    return order.turn(grid).flatten().tolist()


def test_papers_four_orders_are_row_major_forth_and_back_then_column_major_forth_and_back() -> None:
    assert [traversal(order) for order in order_set("paper")] == [
        [0, 1, 2, 3, 4, 5, 6, 7, 8],
        [8, 7, 6, 5, 4, 3, 2, 1, 0],
        [0, 3, 6, 1, 4, 7, 2, 5, 8],
        [8, 5, 2, 7, 4, 1, 6, 3, 0],
    ]


def test_corners_start_in_each_corner() -> None:
    assert sorted(traversal(order)[0] for order in order_set("corners")) == [0, 2, 6, 8]


def test_the_eight_orders_are_all_different() -> None:
    assert len({tuple(traversal(order, 2, 3)) for order in ALL_EIGHT}) == 8


@pytest.mark.parametrize("order", ALL_EIGHT)
def test_turning_back_undoes_turning(order: ScanOrder) -> None:
    grid = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5)
    assert torch.equal(order.turn_back(order.turn(grid)), grid)


def test_unknown_set_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"spiral.*paper, corners, sequence"):
        order_set("spiral")


def test_codes_name_the_orders() -> None:
    assert [ScanOrder.from_code(order.code) for order in ALL_EIGHT] == list(ALL_EIGHT)
    assert sorted(order.code for order in ALL_EIGHT) == list(range(8))
