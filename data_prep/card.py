"""Describe a prepared store: its card in words, and a picture of a few samples."""

from pathlib import Path
from typing import Any

import numpy as np

from geomano_hpc.atomic import replacing
from geomano_hpc.data_prep.store import ARRAYS, Store, open_store

_SAMPLES_SHOWN = 4
_FRAMES_SHOWN = 4


def facts(path: Path) -> dict[str, Any]:
    """The store's card, its arrays and its size, for programs."""
    store = open_store(path)
    sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
    card, origin = store.card, store.card.provenance
    return {
        "store": path,
        "format": card.format,
        "problem": card.problem,
        "kind": card.kind,
        "train_samples": card.train_samples,
        "test_samples": card.test_samples,
        "arrays": {name: _array(store, name) for name in ARRAYS},
        "bytes": sum(sizes),
        "files": len(sizes),
        "sources": origin["sources"],
        "keys": origin["keys"],
        "stride": origin["stride"],
        "axes": origin.get("axes"),
        "versions": origin.get("versions", {"geomano_hpc": origin.get("geomano_hpc")}),
        "content_hash": store.content_hash(),
    }


def _array(store: Store, name: str) -> dict[str, Any]:
    array, normaliser = store.array(name), store.card.normalisers[name]
    return {
        "shape": array.shape,
        "dtype": str(array.dtype),
        "samples_per_shard": 1 if array.shards is None else array.shards[0],
        "mean": normaliser.mean,
        "std": normaliser.std,
    }


def describe(path: Path) -> dict[str, str]:
    """The store's card in words."""
    known = facts(path)
    lines = {
        "store": f"{path} (format {known['format']})",
        "problem": f"{known['problem']} ({known['kind']})",
        "samples": f"{known['train_samples']} train, {known['test_samples']} test",
    }
    for name, array in known["arrays"].items():
        lines[name] = (
            f"{' x '.join(map(str, array['shape'][1:]))} (x, y, channel), {array['dtype']}, "
            f"{array['samples_per_shard']} samples a shard; "
            f"normalised by mean {array['mean']:.6g}, std {array['std']:.6g}"
        )
    lines["size"] = f"{known['bytes'] / 1e6:.1f} MB in {known['files']} files"
    for source in known["sources"]:
        made = source["generation"]
        how = ", ".join(f"{key} {value}" for key, value in made.items()) if made else "not made by this package"
        lines[f"source {source['name']}"] = f"sha256 {source['sha256'][:16]}..., {how}"
    lines["taken from it"] = (
        f"{known['keys']['input']!r} as input, {known['keys']['target']!r} as target, "
        f"every {known['stride']}. point, axes {known['axes'] or 'as the format has them'}"
    )
    lines["written by"] = ", ".join(f"{name} {version}" for name, version in known["versions"].items())
    lines["content hash"] = known["content_hash"]
    return lines


def draw(path: Path, out: Path) -> None:
    """A picture of a few samples of both splits: the input above the target. Of a rollout, frames of time."""
    from matplotlib.figure import Figure

    store = open_store(path)
    train, test = store.card.train_samples, store.card.test_samples
    numbers = sorted({*np.linspace(0, train - 1, min(train, _SAMPLES_SHOWN - 1), dtype=int).tolist(), train})
    assert test > 0
    panels = _frames(store, numbers) if store.card.kind == "rollout" else _pairs(store, numbers)
    rows, columns = len(panels), len(panels[0])
    line = store.array("input").shape[1] == 1
    figure = Figure(figsize=(2.5 * columns + 0.6, (1.7 if line else 2.6) * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for row, (row_axes, row_panels) in enumerate(zip(axes, panels, strict=True)):
        low = min(float(values.min()) for _, values in row_panels)
        high = max(float(values.max()) for _, values in row_panels)
        for column, (axis, (title, values)) in enumerate(zip(row_axes, row_panels, strict=True)):
            if line:
                axis.plot(values[0], linewidth=1.2)
                axis.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
                axis.tick_params(labelsize=7, labelleft=column == 0, labelbottom=row == rows - 1)
                axis.grid(alpha=0.3)
            else:
                image = axis.imshow(values.T, origin="lower", cmap="viridis", vmin=low, vmax=high)
                axis.set_xticks([])
                axis.set_yticks([])
            axis.set_title(title, fontsize=9)
        if not line:
            figure.colorbar(image, ax=list(row_axes), shrink=0.85, pad=0.01).ax.tick_params(labelsize=7)
    figure.suptitle(f"{path.name}: {store.card.problem}, {train} train, {test} test", fontsize=10)
    with replacing(out) as temporary:
        figure.savefig(temporary, dpi=110, format="png")


Panel = tuple[str, Any]


def _split_of(store: Store, number: int) -> str:
    return f"train {number}" if number < store.card.train_samples else f"test {number - store.card.train_samples}"


def _pairs(store: Store, numbers: list[int]) -> list[list[Panel]]:
    return [
        [(f"{name}, {_split_of(store, n)}", store.read(name, slice(n, n + 1))[0, ..., 0]) for n in numbers]
        for name in ARRAYS
    ]


def _frames(store: Store, numbers: list[int]) -> list[list[Panel]]:
    """A row for each of two samples, one of each split: some of the given frames, then some of those to predict."""
    rows = []
    for number in (numbers[0], numbers[-1]):
        row: list[Panel] = []
        for name, first in (("input", 0), ("target", store.array("input").shape[-1])):
            values = store.read(name, slice(number, number + 1))[0]
            shown = np.linspace(0, values.shape[-1] - 1, min(values.shape[-1], _FRAMES_SHOWN // 2), dtype=int)
            row += [(f"{_split_of(store, number)}, {name}, frame {first + k}", values[..., k]) for k in shown.tolist()]
        rows.append(row)
    return rows
