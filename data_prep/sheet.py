"""A picture of a few samples of a store: every field by its name; frames of a rollout, lines of a 1D problem."""

from pathlib import Path

import numpy as np

from geomano_hpc.atomic import replacing
from geomano_hpc.data_prep.store import FRAMES, STATIC, Store, open_store

_SAMPLES_SHOWN = 4
_FRAMES_SHOWN = 4
_MOST_ROWS = 12

Row = tuple[str, list[tuple[str, np.ndarray]]]  # a field, and panels with their titles


def draw(path: Path, out: Path) -> None:
    """A row for each field. Steady: a few samples of the splits. Rollout: frames of a sample to train and of one to
    test."""
    from matplotlib.figure import Figure

    store = open_store(path)
    rows = (_frames(store) if store.card.kind == "rollout" else _pairs(store))[:_MOST_ROWS]
    columns = max(len(panels) for _, panels in rows)
    line = store.card.is_line
    figure = Figure(figsize=(2.5 * columns + 0.6, (1.7 if line else 2.6) * len(rows) + 0.5), layout="constrained")
    for number, ((name, panels), axes) in enumerate(
        zip(rows, figure.subplots(len(rows), columns, squeeze=False), strict=True)
    ):
        low, high = (float(pick(values)) for pick, values in ((np.min, _all(panels)), (np.max, _all(panels))))
        for column, axis in enumerate(axes):
            if column >= len(panels):
                axis.axis("off")
                continue
            title, values = panels[column]
            if line:
                axis.plot(values[0], linewidth=1.2)
                axis.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low) or 1)
                axis.tick_params(labelsize=7, labelleft=column == 0, labelbottom=number == len(rows) - 1)
                axis.grid(alpha=0.3)
            else:
                image = axis.imshow(values.T, origin="lower", cmap="viridis", vmin=low, vmax=high)
                axis.set_xticks([])
                axis.set_yticks([])
            axis.set_title(title, fontsize=9)
        axes[0].set_ylabel(name, fontsize=9)
        if not line:
            figure.colorbar(image, ax=list(axes), shrink=0.85, pad=0.01).ax.tick_params(labelsize=7)
    sizes = ", ".join(f"{size} {name}" for name, size in store.card.splits.items())
    figure.suptitle(f"{path.name}: {store.card.problem}, {sizes}", fontsize=10)
    with replacing(out) as temporary:
        figure.savefig(temporary, dpi=110, format="png")


def _all(panels: list[tuple[str, np.ndarray]]) -> np.ndarray:
    return np.concatenate([values.ravel() for _, values in panels])


def _plane(values: np.ndarray) -> np.ndarray:
    """Of a volume the middle slice."""
    return values[:, :, values.shape[2] // 2] if values.ndim == 3 else values


def _chosen(store: Store, train: int) -> list[tuple[str, int]]:
    """Some samples to train and the first one of each other split: a title, and the number in the store."""
    numbers = store.split("train")
    places = np.linspace(0, len(numbers) - 1, min(len(numbers), train), dtype=int)
    shown = [(f"train {place}", int(numbers[place])) for place in places.tolist()]
    return shown + [(f"{name} 0", int(store.split(name)[0])) for name in store.card.splits if name != "train"]


def _pairs(store: Store) -> list[Row]:
    rows = []
    shown = _chosen(store, _SAMPLES_SHOWN - len(store.card.splits) + 1)
    for array, fields in (("input", store.card.inputs), ("target", store.card.targets)):
        samples = [(title, store.read(array, slice(n, n + 1))[0]) for title, n in shown]
        for number, field in enumerate(fields):
            rows.append((f"{array} {field.name}", [(title, _plane(values[..., number])) for title, values in samples]))
    return rows


def _frames(store: Store) -> list[Row]:
    windows, fields = store.card.windows, store.card.targets
    assert windows is not None
    rows: list[Row] = []
    wanted = np.linspace(0, windows.frames_in + windows.frames_out - 1, _FRAMES_SHOWN, dtype=int)
    for title, number in (_chosen(store, 1)[0], _chosen(store, 1)[-1]):
        frames = [(frame, _frame(store, number, frame)) for frame in sorted(set(wanted.tolist()))]
        for place, field in enumerate(fields):
            panels = [(f"{title}, frame {frame}", _plane(values[..., place])) for frame, values in frames]
            rows.append((field.name, panels))
    if STATIC in store.arrays:
        title, number = _chosen(store, 1)[0]
        values = store.read(STATIC, slice(number, number + 1))[0]
        rows += [(field.name, [(title, _plane(values[..., n]))]) for n, field in enumerate(store.card.statics)]
    return rows


def _frame(store: Store, sample: int, frame: int) -> np.ndarray:
    """[grid ..., field]"""
    windows, fields = store.card.windows, len(store.card.targets)
    assert windows is not None
    if FRAMES in store.arrays:
        row = sample * windows.frames + frame
        return store.read(FRAMES, slice(row, row + 1))[0]
    array, place = ("input", frame) if frame < windows.frames_in else ("target", frame - windows.frames_in)
    return store.read(array, slice(sample, sample + 1))[0][..., place * fields : (place + 1) * fields]
