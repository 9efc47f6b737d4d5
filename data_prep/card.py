"""Describe a prepared store in words and for programs."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from geomano_hpc.data_prep.store import FRAMES, Store, open_store
from geomano_hpc.data_prep.store_card import Field


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
        "protocol": card.protocol,
        **{f"{name}_samples": size for name, size in card.splits.items()},
        "splits": card.splits,
        "inputs": [asdict(field) for field in card.inputs],
        "targets": [asdict(field) for field in card.targets],
        "statics": [asdict(field) for field in card.statics],
        "constants": [asdict(field) for field in card.constants],
        "grid": [asdict(axis) for axis in card.axes],
        "windows": None if card.windows is None else asdict(card.windows),
        "time": card.time,
        "normalised": card.normalised,
        "arrays": {name: _array(store, name) for name in store.arrays},
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
    array = store.array(name)
    return {
        "shape": array.shape,
        "dtype": str(array.dtype),
        "samples_per_shard": 1 if array.shards is None else array.shards[0],
    }


def describe(path: Path) -> dict[str, str]:
    """The store's card in words."""
    known, card = facts(path), open_store(path).card
    what = "trajectories" if FRAMES in known["arrays"] else "samples"
    protocol = ", as the benchmark has it" if card.protocol else ""
    lines = {
        "store": f"{path} (format {known['format']})",
        "problem": f"{card.problem} ({card.kind}{protocol})",
        what: ", ".join(f"{size} {name}" for name, size in card.splits.items()),
    }
    if card.kind == "steady":
        lines |= {f"input {field.name}": _statistics(field) for field in card.inputs}
        lines |= {f"target {field.name}": _statistics(field) for field in card.targets}
    else:
        lines |= {f"field {field.name}": _statistics(field) for field in card.targets}
        lines |= {f"static {field.name}": _statistics(field) for field in card.statics}
    lines |= {f"constant {field.name}": _statistics(field) for field in card.constants}
    if not card.normalised:
        lines["normalised"] = "no" + (", as in the benchmark's protocol" if card.protocol else "")
    for axis in card.axes:
        place = (
            ""
            if axis.spacing is None
            else f" from {axis.start:.6g} in steps of {axis.spacing:.6g} {axis.units}".rstrip()
        )
        lines[f"axis {axis.name}"] = f"{axis.points} points{place}, boundary {axis.boundary}"
    if card.windows is not None:
        step = ""
        if card.time["step"] is not None:
            step = f", a step is {card.time['step']:.6g} {card.time['units']}".rstrip()
        lines["windows"] = (
            f"{card.windows.frames_in} frames given, {card.windows.frames_out} predicted; {len(card.windows.starts)} "
            f"in the {card.windows.frames} frames of a trajectory{step}"
        )
    for name, array in known["arrays"].items():
        lines[f"array {name}"] = (
            f"{' x '.join(map(str, array['shape']))}, {array['dtype']}, {array['samples_per_shard']} a shard"
        )
    lines["size"] = f"{known['bytes'] / 1e6:.1f} MB in {known['files']} files"
    for source in known["sources"]:
        made = source["generation"]
        how = ", ".join(f"{key} {value}" for key, value in made.items()) if made else "not made by this package"
        lines[f"source {source['name']}"] = f"sha256 {source['sha256'][:16]}..., {how}"
    points = "every point" if known["stride"] == 1 else f"every {known['stride']}. point"
    taken = "" if FRAMES in known["arrays"] else f"{_quoted(known['keys']['input'])} as input, "
    role = "rolled out" if FRAMES in known["arrays"] else "as target"
    lines["taken from it"] = (
        f"{taken}{_quoted(known['keys']['target'])} {role}, {points}, axes {known['axes'] or 'as the format has them'}"
    )
    lines["written by"] = ", ".join(f"{name} {version}" for name, version in known["versions"].items())
    lines["content hash"] = known["content_hash"]
    return lines


def _quoted(keys: str | list[str]) -> str:
    return ", ".join(map(repr, [keys] if isinstance(keys, str) else keys))


def _statistics(field: Field) -> str:
    units = f" {field.units}" if field.units else ""
    return f"mean {field.mean:.6g}, std {field.std:.6g}{units}"
