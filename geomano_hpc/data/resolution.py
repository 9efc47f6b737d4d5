"""The arrays of a store at another resolution: from the store itself, or from the raw file beside it.

A coarser grid is every n-th point. It must cover the same domain: where an axis is periodic n divides the number of
points, else the number of intervals, since the last point lies on the boundary, or as near to it as the first.
"""

from collections.abc import Callable

import numpy as np

from geomano_hpc.data_prep.convert import content_sha256, read_fields
from geomano_hpc.data_prep.problems import Problem, problem
from geomano_hpc.data_prep.store import Store
from geomano_hpc.errors import DataError


def reader_at(store: Store, resolution: int) -> Callable[[str, np.ndarray], np.ndarray]:
    """Reads rows of an array of the store with `resolution` points along the longer side of the grid."""
    held = max(store.grid)
    stride = _stride(held, resolution, store)
    if stride is not None:
        every = stride
        return lambda name, rows: _every(store.rows(name, rows), every)
    raw = _points_of_raw(store)
    stride = None if raw is None else _stride(raw, resolution, store)
    if stride is None:
        raise DataError(_not_there(store, resolution, held, raw))
    settings = _settings(store, stride)
    files = [store.path.parent / source["name"] for source in store.card.provenance["sources"]]
    own = [one.file for one in (*settings.inputs, *settings.targets)]
    arrays = read_fields([file for file in files if file not in own], settings, store.card.provenance.get("roles", ()))
    return lambda name, rows: arrays[name][rows]


def _every(values: np.ndarray, stride: int) -> np.ndarray:
    return values[(slice(None), *[slice(None, None, stride)] * (values.ndim - 2))]


def _is_periodic(store: Store) -> bool:
    known = [axis.boundary for axis in store.card.axes]
    return "periodic" in known if store.card.format >= 3 else store.card.kind == "rollout"


def _stride(points: int, resolution: int, store: Store) -> int | None:
    """Every n-th of `points` gives `resolution` points over the same domain; None if no n does."""
    whole, part = (points, resolution) if _is_periodic(store) else (points - 1, resolution - 1)
    return whole // part if part > 0 and whole % part == 0 else None


def _points_of_raw(store: Store) -> int | None:
    """Points along a side in the raw files, if they stand beside the store as they were when it was converted."""
    for source in store.card.provenance["sources"]:
        path = store.path.parent / source["name"]
        if not path.exists() or content_sha256(path) != source["sha256"]:
            return None
    stride = int(store.card.provenance["stride"])
    held = max(store.grid)
    return held * stride if _is_periodic(store) else (held - 1) * stride + 1


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


def _not_there(store: Store, resolution: int, held: int, raw: int | None) -> str:
    names = " and ".join(source["name"] for source in store.card.provenance["sources"])
    sizes = {points for points in (held, raw) if points is not None}
    possible = sorted({r for points in sizes for r in range(3, points + 1) if _stride(points, r, store)})
    source = f"{names} beside it has {raw}" if raw else f"its raw file {names} is not beside it"
    return (
        f"{store.path}: holds {held} points a side and {source}, which gives {', '.join(map(str, possible))} but not "
        f"{resolution}; choose one of these, or convert data of that resolution and name it with --store"
    )
