"""The samples of a store at another resolution: from the store itself, or from the raw file beside it.

A coarser grid is every n-th point. It must cover the same domain: the last point of a steady problem's grid lies on the
boundary, so n divides the number of intervals; the grid of a rollout is periodic, so n divides the number of points.
"""

import numpy as np

from geomano_hpc.atomic import sha256
from geomano_hpc.data_prep.convert import read_fields
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.data_prep.store import Store
from geomano_hpc.errors import DataError


def read_at(store: Store, samples: slice, resolution: int) -> tuple[np.ndarray, np.ndarray]:
    """Input and target of some samples with `resolution` points along the longer side of the grid."""
    held = max(store.array("input").shape[1:3])
    stride = _stride(held, resolution, store.card.kind)
    if stride is not None:
        every = np.s_[:, ::stride, ::stride]
        return store.read("input", samples)[every], store.read("target", samples)[every]
    raw = _points_of_raw(store)
    stride = None if raw is None else _stride(raw, resolution, store.card.kind)
    if stride is None:
        raise DataError(_not_there(store, resolution, held, raw))
    return _read_raw(store, samples, stride)


def _stride(points: int, resolution: int, kind: str) -> int | None:
    """Every n-th of `points` gives `resolution` points over the same domain; None if no n does."""
    whole, part = (points, resolution) if kind == "rollout" else (points - 1, resolution - 1)
    return whole // part if part > 0 and whole % part == 0 else None


def _points_of_raw(store: Store) -> int | None:
    """Points along a side in the raw files, if they stand beside the store as they were when it was converted."""
    for source in store.card.provenance["sources"]:
        path = store.path.parent / source["name"]
        if not path.is_file() or sha256(path) != source["sha256"]:
            return None
    stride = int(store.card.provenance["stride"])
    held = max(store.array("input").shape[1:3])
    if store.card.kind == "rollout":
        return held * stride
    return (held - 1) * stride + 1


def _read_raw(store: Store, samples: slice, stride: int) -> tuple[np.ndarray, np.ndarray]:
    card, origin = store.card, store.card.provenance
    settings = problem(
        card.problem,
        input_key=origin["keys"]["input"],
        target_key=origin["keys"]["target"],
        axes=origin.get("axes"),
        channel=origin.get("channel"),
        train_samples=card.train_samples,
        test_samples=card.test_samples,
        stride=stride,
    )
    fields = read_fields([store.path.parent / source["name"] for source in origin["sources"]], settings)
    return fields.input[samples], fields.target[samples]


def _not_there(store: Store, resolution: int, held: int, raw: int | None) -> str:
    names = " and ".join(source["name"] for source in store.card.provenance["sources"])
    sizes = {points for points in (held, raw) if points is not None}
    possible = sorted({r for points in sizes for r in range(3, points + 1) if _stride(points, r, store.card.kind)})
    source = f"{names} beside it has {raw}" if raw else f"its raw file {names} is not beside it"
    return (
        f"{store.path}: holds {held} points a side and {source}, which gives {', '.join(map(str, possible))} but not "
        f"{resolution}; choose one of these, or convert data of that resolution and name it with --store"
    )
