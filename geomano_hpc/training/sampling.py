"""Where the points of the data at hand lie, in points of the grid that a model was trained on.

From the coordinates of both where they are known: the store's card has them, and weights keep them. Else both grids are
taken to cover the same domain, as two resolutions of one problem do.
"""

from collections.abc import Sequence

from torch import nn

from geomano_hpc.data import Signature
from geomano_hpc.data.signature import steps_between
from geomano_hpc.data_prep.store_card import Axis
from geomano_hpc.errors import DataError
from geomano_hpc.models.parts.grid_model import GridModel
from geomano_hpc.models.parts.sampling import Sampling

_MOST = 32.0  # times as coarse or as fine: beyond it one of the two has other units


def place(model: nn.Module, trained: Sequence[Axis], here: Sequence[Axis], source: str) -> None:
    """Tell the model where the points of the next grids lie, if it wants to know. `source` is named in errors."""
    if isinstance(model, GridModel):
        model.place(sampling_between(trained, here, source))


def axes_of(known: Signature, grid: Sequence[int]) -> tuple[Axis, ...]:
    """Those of the training; older weights know the number of points only."""
    if known.axes:
        return known.axes
    return tuple(Axis("", points, boundary=boundary) for points, boundary in zip(grid, known.boundary, strict=False))


def grid_of(trained: Sequence[Axis], grid: Sequence[int]) -> tuple[Axis, ...]:
    """The domain of the training on a grid of fields of which nothing else is known."""
    return tuple(Axis(axis.name, points, boundary=axis.boundary) for axis, points in zip(trained, grid, strict=True))


def sampling_between(trained: Sequence[Axis], here: Sequence[Axis], source: str) -> Sampling:
    found = [_along(one, other, source) for one, other in zip(trained, here, strict=True)]
    (along_H, from_H), (along_W, from_W) = found
    rings = [axis.boundary == "periodic" and axis.points > 1 for axis in here]
    points = (trained[0].points, trained[1].points)
    return Sampling((along_H, along_W), (from_H, from_W), points, (rings[0], rings[1]))


def _along(trained: Axis, here: Axis, source: str) -> tuple[float, float]:
    """Spacing and first point, in steps of the training."""
    if 1 in (trained.points, here.points):
        return 1.0, 0.0
    if trained.units and here.units and trained.units != here.units:
        raise DataError(
            f"{source}: axis {here.name} is in {here.units}, and the model was trained on {trained.units}: convert the "
            "data with the same units"
        )
    if trained.spacing is None or here.spacing is None:
        return _whole(steps_between(trained, here.points)), 0.0
    spacing = here.spacing / trained.spacing
    if not 1 / _MOST <= spacing <= _MOST:
        raise DataError(
            f"{source}: its points along {here.name} are {here.spacing:g} apart, those of the training "
            f"{trained.spacing:g}: more than {_MOST:.0f} times as fine or as coarse; are both in the same units?"
        )
    first = 0.0 if None in (trained.start, here.start) else (here.start - trained.start) / trained.spacing  # type: ignore[operator]
    return _whole(spacing), first if abs(first) > 1e-6 else 0.0


def _whole(spacing: float) -> float:
    """Without the rounding of two spacings, where one is a multiple of the other."""
    times = round(max(spacing, 1 / spacing))
    exact = float(times) if spacing > 1 else 1 / times
    return exact if abs(spacing - exact) < 1e-6 * exact else spacing
