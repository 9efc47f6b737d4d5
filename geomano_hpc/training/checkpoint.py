"""Checkpoints: everything that the next step depends on, written whole or not at all, read without pickled code."""

import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save

from geomano_hpc.atomic import new_folder, remove, sha256, write_json
from geomano_hpc.errors import GeomanoError
from geomano_hpc.training.engine import Engine
from geomano_hpc.training.ranks import tell_all

logger = logging.getLogger(__name__)

WEIGHTS, STATE, CHECKSUMS = "model.safetensors", "state.pt", "sha256.json"


@dataclass(frozen=True)
class Position:
    """How far a run has come: finished epochs and optimiser steps."""

    epoch: int
    step: int


def save_checkpoint(folder: Path, engine: Engine, position: Position, keep: int) -> None:
    """Write `epoch_<n>/` and remove all but the newest `keep`. Every rank calls it; rank 0 writes."""
    if engine.ranks.is_main:
        path = folder / f"epoch_{position.epoch:06d}"
        if path.exists():  # one that could not be read: a good one would have been gone on from
            shutil.rmtree(path)
        with new_folder(path) as temporary:
            (temporary / WEIGHTS).write_bytes(save(engine.model.state_dict()))
            torch.save(_state(engine, position), temporary / STATE)
            write_json(temporary / CHECKSUMS, {name: sha256(temporary / name) for name in (WEIGHTS, STATE)})
        for old in _checkpoints(folder)[keep:]:
            shutil.rmtree(old)
    if engine.ranks.world_size > 1:
        torch.distributed.barrier()


def load_newest(folder: Path, engine: Engine) -> Position:
    """Continue from the newest good checkpoint, the same on every rank; from the start where there is none."""
    path = tell_all(_newest_good(folder) if engine.ranks.is_main else None, engine.ranks)
    if path is None:
        return Position(0, 0)
    engine.model.load_state_dict(load_file(path / WEIGHTS, device="cpu"))
    state: dict[str, Any] = torch.load(path / STATE, map_location="cpu", weights_only=True)
    engine.optimizer.load_state_dict(state["optimizer"])
    engine.scheduler.load_state_dict(state["scheduler"])
    torch.set_rng_state(state["rng"])
    logger.info("resumed from %s", path)
    return Position(state["epoch"], state["step"])


def _newest_good(folder: Path) -> Path | None:
    """The newest checkpoint whose files match their checksums. The caller holds the run folder."""
    for unfinished in folder.glob(".epoch_*"):  # left by a process that was killed while it wrote
        remove(unfinished)
    candidates = _checkpoints(folder)
    for path in candidates:
        try:
            checksums = json.loads((path / CHECKSUMS).read_text(encoding="utf-8"))
            damaged = [name for name in (WEIGHTS, STATE) if sha256(path / name) != checksums[name]]
        except (OSError, ValueError, KeyError) as error:
            damaged = [str(error)]
        if not damaged:
            return path
        logger.warning("checkpoint %s is damaged (%s): trying the one before", path, ", ".join(damaged))
    if candidates:
        raise GeomanoError(f"{folder}: all {len(candidates)} checkpoints are damaged; remove the folder to start over")
    return None


def _state(engine: Engine, position: Position) -> dict[str, Any]:
    return {
        "epoch": position.epoch,
        "step": position.step,
        "optimizer": engine.optimizer.state_dict(),
        "scheduler": engine.scheduler.state_dict(),
        "rng": torch.get_rng_state(),
    }


def _checkpoints(folder: Path) -> list[Path]:
    """Newest first. A folder gets this name only when it is complete."""
    return sorted(folder.glob("epoch_*"), reverse=True)
