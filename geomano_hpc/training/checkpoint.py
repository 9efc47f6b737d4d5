"""Checkpoints: everything that the next step depends on, written whole or not at all, read without pickled code."""

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from geomano_hpc.atomic import new_folder
from geomano_hpc.errors import GeomanoError
from geomano_hpc.training.engine import Engine

logger = logging.getLogger(__name__)


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
            (temporary / "model.safetensors").write_bytes(save(engine.model.state_dict()))
            torch.save(_state(engine, position), temporary / "state.pt")
        for old in _checkpoints(folder)[keep:]:
            shutil.rmtree(old)
    if engine.ranks.world_size > 1:
        torch.distributed.barrier()


def load_newest(folder: Path, engine: Engine) -> Position:
    """Continue from the newest checkpoint that can be read; from the start where there is none."""
    candidates = _checkpoints(folder)
    for path in candidates:
        try:
            weights = load_file(path / "model.safetensors", device="cpu")
            state: dict[str, Any] = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, SafetensorError, EOFError) as error:
            logger.warning("checkpoint %s cannot be read (%s): trying the one before", path, error)
            continue
        engine.model.load_state_dict(weights)
        engine.optimizer.load_state_dict(state["optimizer"])
        engine.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["rng"])
        logger.info("resumed from %s", path)
        return Position(state["epoch"], state["step"])
    if candidates:
        raise GeomanoError(
            f"{folder}: none of {len(candidates)} checkpoints can be read; remove the folder to start over"
        )
    return Position(0, 0)


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
