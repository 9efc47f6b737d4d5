"""What a recipe leaves to its data: `model.domain: auto` becomes what the card of the store says.

Read as plain JSON, so that a recipe is read without Zarr.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

AUTO = "auto"


def resolved(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The recipe with the domain of its store; as it is where the store is not there to tell, or it asks nothing."""
    model, data = content.get("model"), content.get("data")
    if not isinstance(model, Mapping) or model.get("domain") != AUTO or not isinstance(data, Mapping):
        return content
    card = _card(Path(str(data.get("store"))))
    if card is None:
        return content
    kind = card.get("kind", card.get("task"))  # the second of older stores, of which only Burgers' have lines
    axes = len(card["axes"]) if "axes" in card else 1 if card.get("problem") == "burgers" else 2
    domain = {1: "1d", 2: "3d" if kind == "rollout" else "2d"}.get(axes, AUTO)
    return {**content, "model": {**model, "domain": domain}}


def _card(store: Path) -> dict[str, Any] | None:
    try:
        card = json.loads((store / "zarr.json").read_text(encoding="utf-8"))["attributes"]["geomano"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return card if isinstance(card, dict) else None
