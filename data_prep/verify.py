"""Check a prepared store and describe it."""

from pathlib import Path

import numpy as np

from geomano_hpc.atomic import sha256
from geomano_hpc.data_prep.store import ARRAYS, open_store, read_manifest
from geomano_hpc.progress import progress


def verify(path: Path) -> list[str]:
    """Every problem of the store in one line each; an empty list is a good store."""
    store = open_store(path)
    problems = []
    manifest = read_manifest(path)
    with progress("verify", len(manifest)) as advance:
        for name, expected in sorted(manifest.items()):
            if sha256(path / name) != expected:
                problems.append(f"{path / name}: shard does not match its checksum in the manifest")
            advance("")
    on_disk = {
        file.relative_to(path).as_posix()
        for array in ARRAYS
        for file in (path / array / "c").rglob("*")
        if file.is_file()
    }
    problems += [f"{path / name}: file is not in the manifest" for name in sorted(on_disk - manifest.keys())]
    samples = store.card.train_samples + store.card.test_samples
    for name in ARRAYS:
        array = store.array(name)
        if array.shape[0] != samples:
            problems.append(f"{path}: {name!r} has {array.shape[0]} samples, the card says {samples}")
        if not problems:
            problems += _check_samples(path, name, store.read(name, slice(0, samples)))
    return problems


def _check_samples(path: Path, name: str, values: np.ndarray) -> list[str]:
    flat = values.reshape(len(values), -1)
    finite = np.isfinite(flat).all(axis=1)
    constant = finite & (flat.max(axis=1) == flat.min(axis=1))
    problems = []
    for what, marks in (("NaN or Inf", ~finite), ("the same value everywhere", constant)):
        if marks.any():
            problems.append(f"{path}: {name!r} has {what} in samples {np.flatnonzero(marks)[:8].tolist()}")
    return problems


def describe(path: Path) -> dict[str, str]:
    """The store's card in words."""
    store = open_store(path)
    files = [file for file in path.rglob("*") if file.is_file()]
    card = store.card
    lines = {
        "store": str(path),
        "problem": f"{card.problem} ({card.task})",
        "samples": f"{card.train_samples} train, {card.test_samples} test",
    }
    for name in ARRAYS:
        array = store.array(name)
        normaliser = card.normalisers[name]
        lines[name] = (
            f"{' x '.join(map(str, array.shape[1:]))} (x, y, channel), {array.dtype}; "
            f"normalised by mean {normaliser.mean:.6g}, std {normaliser.std:.6g}"
        )
    lines["size"] = f"{sum(file.stat().st_size for file in files) / 1e6:.1f} MB in {len(files)} files"
    for source in card.provenance["sources"]:
        made = source["generation"]
        how = ", ".join(f"{key} {value}" for key, value in made.items()) if made else "not made by this package"
        lines[f"source {source['name']}"] = f"sha256 {source['sha256'][:16]}..., {how}"
    lines["content hash"] = store.content_hash()
    return lines
