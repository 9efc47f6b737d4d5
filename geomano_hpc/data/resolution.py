"""The arrays of a store at another resolution: from the store itself, or from the raw file beside it.

A coarser grid is every n-th point. It must cover the same domain: along a periodic side n divides the number of points,
along any other one the number of intervals, since the last point lies on the boundary, or as near to it as the first.
"""

from collections.abc import Callable, Sequence

import numpy as np

from geomano_hpc.data_prep.conversion.convert import content_sha256, read_fields
from geomano_hpc.data_prep.problems import Problem, problem
from geomano_hpc.data_prep.store import Store
from geomano_hpc.errors import DataError


def reader_at(store: Store, resolution: int) -> Callable[[str, np.ndarray], np.ndarray]:
    """Reads rows of an array of the store with `resolution` points along the longer side of the grid."""
    every = _stride(store, store.grid, resolution)
    if every is not None:
        return lambda name, rows: _every(store.rows(name, rows), every)
    raw = _points_of_raw(store)
    stride = None if raw is None else _stride(store, raw, resolution)
    if stride is None:
        raise DataError(_not_there(store, resolution, raw))
    settings = _settings(store, stride)
    files = [store.path.parent / source["name"] for source in store.card.provenance["sources"]]
    own = [one.file for one in (*settings.inputs, *settings.targets)]
    arrays = read_fields([file for file in files if file not in own], settings, store.card.provenance.get("roles", ()))
    return lambda name, rows: arrays[name][rows]


def stride_within(store: Store, resolution: int) -> int:
    """Every n-th point of the store's own grid gives `resolution` points along its longer side, and the same domain."""
    stride = _stride(store, store.grid, resolution)
    if stride is None:
        possible = ", ".join(map(str, _resolutions(store, store.grid)))
        raise DataError(
            f"{store.path}: of its {max(store.grid)} points a side, every n-th one gives {possible}, but not "
            f"{resolution}; choose one of these, so that every grid covers the same domain"
        )
    return stride


def _resolutions(store: Store, grid: Sequence[int]) -> list[int]:
    return [points for points in range(3, max(grid) + 1) if _stride(store, grid, points) is not None]


def _every(values: np.ndarray, stride: int) -> np.ndarray:
    return values[(slice(None), *[slice(None, None, stride)] * (values.ndim - 2))]


def _is_periodic(store: Store) -> list[bool]:
    """Along each axis of the arrays. Older stores say it of the problem only."""
    if store.card.format < 3:
        return [store.card.kind == "rollout"] * len(store.grid)
    return [boundary == "periodic" for boundary in store.card.boundary]


def _stride(store: Store, grid: Sequence[int], resolution: int) -> int | None:
    """Every n-th point of `grid` gives `resolution` points along its longer side, and the same domain along every side;
    None if no n does."""
    # Of a periodic side its points are parted, of any other one its intervals.
    sides = [points if wraps else points - 1 for points, wraps in zip(grid, _is_periodic(store), strict=True)]
    longest = int(np.argmax(grid))
    part = resolution if _is_periodic(store)[longest] else resolution - 1
    if part < 1 or sides[longest] % part:
        return None
    stride = sides[longest] // part
    fits = all(points == 1 or side % stride == 0 for points, side in zip(grid, sides, strict=True))
    return stride if fits else None


def _points_of_raw(store: Store) -> tuple[int, ...] | None:
    """Points along each side in the raw files, if they stand beside the store as they were when it was converted."""
    origin = store.card.provenance
    for source in origin["sources"]:
        path = store.path.parent / source["name"]
        if not path.exists() or content_sha256(path) != source["sha256"]:
            return None
    stride = int(origin["stride"])
    if "points" in origin:
        return tuple(origin["points"])
    pairs = zip(store.grid, _is_periodic(store), strict=True)
    return tuple(1 if held == 1 else held * stride if wraps else (held - 1) * stride + 1 for held, wraps in pairs)


def _settings(store: Store, stride: int) -> Problem:
    card, origin = store.card, store.card.provenance
    if "settings" in origin:
        return Problem.from_json({**origin["settings"], "stride": stride}, store.path.parent)
    return problem(
        card.problem,
        input_key=origin["keys"]["input"],
        target_key=origin["keys"]["target"],
        axes=origin.get("axes"),
        channel=origin.get("channel"),
        train_samples=card.train_samples,
        test_samples=card.test_samples,
        stride=stride,
    )


def _not_there(store: Store, resolution: int, raw: tuple[int, ...] | None) -> str:
    names = " and ".join(source["name"] for source in store.card.provenance["sources"])
    grids = [grid for grid in (store.grid, raw) if grid is not None]
    possible = sorted({points for grid in grids for points in _resolutions(store, grid)})
    source = f"{names} beside it has {max(raw)}" if raw else f"its raw file {names} is not beside it"
    return (
        f"{store.path}: holds {max(store.grid)} points a side and {source}, which gives "
        f"{', '.join(map(str, possible))} but not {resolution}; choose one of these, or convert data of that one "
        "and name it with --store"
    )
