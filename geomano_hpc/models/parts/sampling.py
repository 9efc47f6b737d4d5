"""Where the points of a grid lie, as a model needs to know it: in units of the grid that it was trained on."""

from dataclasses import dataclass, replace

Pair = tuple[float, float]


@dataclass(frozen=True)
class Sampling:
    """Point k along an axis lies at start + spacing k, where the points of the training's grid lie at 0, 1, 2, ...

    So a grid twice as fine has a spacing of 1/2. All of it is by axis: along H, along W.
    """

    spacing: Pair = (1.0, 1.0)
    start: Pair = (0.0, 0.0)
    points: tuple[int, int] | None = None  # of the training's grid; None: as many as there are
    periodic: tuple[bool, bool] = (False, False)

    @property
    def in_pixels(self) -> "Sampling":
        """The points counted, wherever they lie."""
        return replace(self, spacing=(1.0, 1.0), start=(0.0, 0.0), points=None)

    @property
    def unrolled(self) -> "Sampling":
        """The same points, and no axis continues at its other end."""
        return replace(self, periodic=(False, False))

    def of_patches(self, sides: tuple[int, int]) -> "Sampling":
        """Of the centres of patches, whose sides were so many points in the training, in units of these patches."""
        found = [self._of_patches(axis, sides[axis]) for axis in (0, 1)]
        (along_H, from_H), (along_W, from_W) = found
        points = None if self.points is None else (-(-self.points[0] // sides[0]), -(-self.points[1] // sides[1]))
        return replace(self, spacing=(along_H, along_W), start=(from_H, from_W), points=points)

    def sides(self, sides: tuple[int, int]) -> tuple[int, int]:
        """Points of a patch here, along H and W, so that it keeps its physical size; its points where that is no
        whole number."""
        return self._side(0, sides[0]), self._side(1, sides[1])

    def _side(self, axis: int, side: int) -> int:
        wanted = side / self.spacing[axis]
        whole = round(wanted)
        return whole if side > 1 and whole >= 1 and abs(wanted - whole) < 1e-6 else side

    def _of_patches(self, axis: int, side: int) -> Pair:
        spacing, here = self.spacing[axis], self._side(axis, side)
        centre = self.start[axis] + spacing * (here - 1) / 2 - (side - 1) / 2
        return _near_one(spacing * here / side), centre / side


def _near_one(value: float) -> float:
    return 1.0 if abs(value - 1.0) < 1e-9 else value


AS_TRAINED = Sampling()  # on the grid of the training, or any if nobody says where its points lie
