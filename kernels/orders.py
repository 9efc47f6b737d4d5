"""Scan orders: the eight orientations in which a grid can be traversed, and the named sets of them.

An order turns the grid so that its traversal becomes row-major from the top left, and turns results back.
Axes: B batch, H x W grid, anything behind.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ScanOrder:
    """One of the eight orientations: row- or column-major, each axis forwards or backwards.

    Examples:
        >>> from geomano_hpc import ScanOrder
        >>> ScanOrder(column_major=True, rows_backwards=True)  # down the columns, from the bottom up
        ScanOrder(column_major=True, rows_backwards=True, columns_backwards=False)
    """

    column_major: bool = False
    rows_backwards: bool = False
    columns_backwards: bool = False

    @property
    def code(self) -> int:
        """The order as three bits, the form in which kernels take it."""
        return self.column_major + 2 * self.rows_backwards + 4 * self.columns_backwards

    @classmethod
    def from_code(cls, code: int) -> "ScanOrder":
        return cls(bool(code & 1), bool(code & 2), bool(code & 4))

    @property
    def _flipped_axes(self) -> list[int]:
        return [axis for axis, backwards in ((1, self.rows_backwards), (2, self.columns_backwards)) if backwards]

    def turn(self, grid_BHW: torch.Tensor) -> torch.Tensor:
        """Traverse_d of Algorithm 1: afterwards the traversal is row-major from the top left."""
        turned = grid_BHW.flip(self._flipped_axes) if self._flipped_axes else grid_BHW
        return turned.transpose(1, 2) if self.column_major else turned

    def turn_back(self, grid_BHW: torch.Tensor) -> torch.Tensor:
        turned = grid_BHW.transpose(1, 2) if self.column_major else grid_BHW
        return turned.flip(self._flipped_axes) if self._flipped_axes else turned


_ROWS = ScanOrder()
_ROWS_BACK = ScanOrder(rows_backwards=True, columns_backwards=True)
_COLUMNS = ScanOrder(column_major=True)
_COLUMNS_BACK = ScanOrder(column_major=True, rows_backwards=True, columns_backwards=True)

ORDER_SETS: dict[str, tuple[ScanOrder, ...]] = {
    # "GeoMamba Kernel" of the paper: row-major forth and back, column-major forth and back.
    "paper": (_ROWS, _ROWS_BACK, _COLUMNS, _COLUMNS_BACK),
    # Ours: row-major from each of the four corners, so that a 2D scan sees all four quadrants of a point.
    "corners": (_ROWS, ScanOrder(columns_backwards=True), ScanOrder(rows_backwards=True), _ROWS_BACK),
    # A plain sequence is a 1 x L grid.
    "sequence": (_ROWS, _ROWS_BACK),
}


def order_set(name: str) -> tuple[ScanOrder, ...]:
    if name not in ORDER_SETS:
        raise ValueError(f"unknown set of scan orders {name!r}; known sets: {', '.join(ORDER_SETS)}")
    return ORDER_SETS[name]
