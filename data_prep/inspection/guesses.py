"""What the axes of a raw array might be, where its format does not say: from its sizes, and from points beside it."""

from collections.abc import Mapping, Sequence

_MOST_CHANNELS = 4  # of a last axis that is taken for channels


def guessed_axes(shape: Sequence[int], points: Mapping[str, int]) -> tuple[str, ...] | None:
    """`points`: the sizes of one-dimensional arrays that are called like an axis. None for what is no field."""
    shape = tuple(shape)
    if len(shape) < 2 or len(shape) > 6 or min(shape) < 1 or sum(size > 1 for size in shape) < 2:
        return None
    return _by_points(shape, points) or _by_sizes(shape)


def _by_points(shape: tuple[int, ...], points: Mapping[str, int]) -> tuple[str, ...] | None:
    """Each axis with points has their number, in the order t x y z where numbers are the same; one axis may be left
    for samples, and a short last one for channels."""
    if "x" not in points:
        return None
    left: list[str | None] = [None] * len(shape)
    for axis in "txyz":
        places = [at for at, size in enumerate(shape) if size == points.get(axis) and left[at] is None]
        if places:
            left[places[0]] = axis
    if "x" not in left:
        return None
    if left[-1] is None and shape[-1] <= _MOST_CHANNELS and left.count(None) == 2:
        left[-1] = "c"
    if left.count(None) > 1:
        return None
    return tuple("sample" if axis is None else axis for axis in left)


def _by_sizes(shape: tuple[int, ...]) -> tuple[str, ...]:
    """Two or three axes of the same size beside each other are taken for points, and then what is around them."""
    usual = ("sample x", "sample t x", "sample t x y", "sample t x y c", "sample t x y z c")[len(shape) - 2]
    alike = None if len(shape) == 2 else _alike(shape)
    if alike is None:
        return tuple(usual.split())
    start, stop = alike
    before, behind = ("sample", "t", "c")[:start], len(shape) - stop
    if start == 0:
        after = ("sample",) if behind == 1 else ("t", "sample", "c")[:behind]
    elif start == 1:
        after = ("c",) if behind == 1 and shape[-1] < _MOST_CHANNELS else ("t", "c")[:behind]
    else:
        after = ("c",)[: behind if start == 2 else 0]
    found = (*before, *("x", "y", "z")[: stop - start], *after)
    return found if len(found) == len(shape) else tuple(usual.split())


def _alike(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Where the longest run of equal sizes begins and ends, if it can be points."""
    best: tuple[int, int] | None = None
    first = int(len(set(shape)) == 1)  # one axis is left for samples
    for start in range(first, len(shape) - 1):
        stop = start + 1
        while stop < len(shape) and stop - start < 3 and shape[stop] == shape[start]:
            stop += 1
        long_enough = stop - start > 1 and shape[start] > _MOST_CHANNELS
        if long_enough and (best is None or stop - start > best[1] - best[0]):
            best = (start, stop)
    return best
