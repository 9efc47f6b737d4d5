"""A scan of points that lie closer together, or farther apart, than those for which dt was learned.

A sum over points stands for an integral, in which each point counts for the cell around it. With one point to a cell
the scan reaches from the near end of the first cell to the far end of a point's own. Points that are s apart have cells
of size s. Each counts for s, and where the scan begins and ends (1 - s) / 2 of a cell is missing, which counts for the
first point and for a point's own. What subtracts R Bbar x is about the point's own cell, whatever its size now, and
stays. So with u = dt B x, S the scan along rows, T that along columns, and m = (1 - s) / 2 of their axes

    h = (T s_T + m_T) (S s_S + m_S) u        2D
    h = (S s + m) u                          1D

where the first point of S u counts for s + m, unless the axis is a ring. Kernels know (T + own_T) (S + own_S), so B is
multiplied by s, R divided by it, and own = m / s. An exact zero-order hold is one of the training's steps and stays.
"""

import math

from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings

Pair = tuple[float, float]


def on_spacing(inputs: ScanInputs, settings: ScanSettings, spacing: Pair) -> tuple[ScanInputs, ScanSettings]:
    """The same scan of points at these distances along H and W, for kernels that know points at distance 1."""
    if not all(0 < one < math.inf for one in spacing):
        raise ValueError(f"geo_scan: spacing is {spacing}, expected two numbers above 0")
    along_K = [spacing[0] if order.column_major else spacing[1] for order in settings.orders]
    is_plane = settings.kind == "2d"
    counts_K = inputs.A.new_tensor([spacing[0] * spacing[1]] * len(along_K) if is_plane else along_K)
    scaled = inputs._replace(
        A=inputs.A * inputs.A.new_tensor(along_K)[:, None, None],
        B=(inputs.B * counts_K[:, None]).to(inputs.B.dtype),
        R=None if inputs.R is None else inputs.R / counts_K[:, None, None],
    )
    of_points = settings._replace(
        stretch=spacing[0] / spacing[1] if is_plane else 1.0,
        own=((1 / spacing[0] - 1) / 2, (1 / spacing[1] - 1) / 2),
        hold=None if settings.hold is None else (settings.hold[0] / spacing[0], settings.hold[1] / spacing[1]),
    )
    return scaled, of_points
