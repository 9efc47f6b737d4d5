"""Checkpoints: everything that the next step depends on, written whole or not at all, read without pickled code.

checkpoints/step_<n>-epoch_<m>/  model.safetensors  optimizer.safetensors  state.json  sha256.json
                                 best.safetensors, where a validation split has chosen some

The state is gathered and knows nothing of ranks, ZeRO stages or engines: any of them may go on from it.
"""

import json
import logging
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save

from geomano_hpc.atomic import new_folder, remove, replacing, same_file, sha256, write_json
from geomano_hpc.errors import GeomanoError
from geomano_hpc.training.distributed.ranks import Ranks
from geomano_hpc.training.distributed.world import tell_all, wait_for_all
from geomano_hpc.training.engines.engine import Engine, EngineState

logger = logging.getLogger(__name__)

WEIGHTS, OPTIMIZER, STATE, CHECKSUMS = "model.safetensors", "optimizer.safetensors", "state.json", "sha256.json"
BEST = "best.safetensors"
_HASHED = (WEIGHTS, OPTIMIZER, STATE)
_RNG = "rng."  # beside the moments of the optimiser


@dataclass(frozen=True)
class Position:
    """How far a run has come: finished epochs, and optimiser steps over all epochs, those of the one at work too."""

    epoch: int = 0
    step: int = 0


@dataclass(frozen=True)
class Checkpoint:
    position: Position = Position()
    sums: dict[str, float] = field(default_factory=dict)  # of the epoch at work
    skipped: int = 0  # batches whose loss was not finite
    best: float | None = None  # the smallest error on the validation split so far


def save_checkpoint(folder: Path, engine: Engine, checkpoint: Checkpoint, keep: int, best: Path | None) -> Path:
    """Write a checkpoint and remove all but the newest `keep`. Every rank calls it; rank 0 writes. `best` is the file
    of the weights that were chosen so far: epochs that are lost after the checkpoint must not leave theirs behind."""
    # Both numbers: the last step of an epoch may be saved before the epoch's evaluation, and again after it.
    path = folder / f"step_{checkpoint.position.step:09d}-epoch_{checkpoint.position.epoch:06d}"
    state = engine.state()
    if engine.ranks.is_main:
        if path.exists():  # one that could not be read: a good one would have been gone on from
            shutil.rmtree(path)
        with new_folder(path) as temporary:
            (temporary / WEIGHTS).write_bytes(save(state.weights))
            (temporary / OPTIMIZER).write_bytes(save({**state.moments, **_random_states()}))
            write_json(temporary / STATE, {**asdict(checkpoint), "engine": state.record})
            if best is not None:
                same_file(best, temporary / BEST)
            names = (*_HASHED, *([BEST] if best is not None else []))
            write_json(temporary / CHECKSUMS, {name: sha256(temporary / name) for name in names})
        for old in _checkpoints(folder)[keep:]:
            shutil.rmtree(old)
    wait_for_all(engine.ranks)
    return path


def load_newest(folder: Path, engine: Engine, best: Path) -> Checkpoint:
    """Continue from the newest good checkpoint, the same on every rank; from the start where there is none. The chosen
    weights (`best`) are those of the checkpoint again, too."""
    path = tell_all(_found(folder, engine.ranks), engine.ranks)
    if isinstance(path, GeomanoError):
        raise path
    if path is None:
        return Checkpoint()
    weights, optimizer = load_file(path / WEIGHTS), load_file(path / OPTIMIZER)
    content: dict[str, Any] = json.loads((path / STATE).read_text(encoding="utf-8"))
    moments = {name: tensor for name, tensor in optimizer.items() if not name.startswith(_RNG)}
    engine.load(EngineState(weights, moments, content["engine"]))
    _set_random_states(optimizer)
    if engine.ranks.is_main and (path / BEST).is_file():
        with replacing(best) as temporary:
            same_file(path / BEST, temporary)
    position = Position(**content["position"])
    logger.info("resumed from %s: epoch %d, step %d", path, position.epoch + 1, position.step)
    return Checkpoint(position, content["sums"], content["skipped"], content["best"])


def _found(folder: Path, ranks: Ranks) -> Path | GeomanoError | None:
    """The newest good checkpoint as rank 0 sees it, or why there is none, to be told to all."""
    if not ranks.is_main:
        return None
    try:
        return _newest_good(folder)
    except GeomanoError as error:
        return error


def _newest_good(folder: Path) -> Path | None:
    """The newest checkpoint whose files match their checksums. The caller holds the run folder."""
    for unfinished in folder.glob(".step_*"):  # left by a process that was killed while it wrote
        remove(unfinished)
    candidates = _checkpoints(folder)
    for path in candidates:
        try:
            checksums = json.loads((path / CHECKSUMS).read_text(encoding="utf-8"))
            damaged = [name for name in {*_HASHED, *checksums} if sha256(path / name) != checksums[name]]
        except (OSError, ValueError, KeyError) as error:
            damaged = [str(error)]
        if not damaged:
            for passed_over in candidates[: candidates.index(path)]:  # else they would count among the newest to keep
                passed_over.rename(passed_over.with_name(f"damaged-{passed_over.name}"))
            return path
        logger.warning("checkpoint %s is damaged (%s): trying the one before", path, ", ".join(damaged))
    if candidates:
        raise GeomanoError(f"{folder}: all {len(candidates)} checkpoints are damaged; remove the folder to start over")
    if any(folder.glob("epoch_*")):
        raise GeomanoError(f"{folder}: holds checkpoints of an older version; remove the folder to start over")
    return None


def _random_states() -> dict[str, torch.Tensor]:
    """Rank 0's: sample order and initial weights have generators of their own, which the seed decides."""
    states = {f"{_RNG}cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states[f"{_RNG}cuda"] = torch.cuda.get_rng_state()
    return states


def _set_random_states(tensors: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(tensors[f"{_RNG}cpu"])
    if torch.cuda.is_available() and f"{_RNG}cuda" in tensors:
        torch.cuda.set_rng_state(tensors[f"{_RNG}cuda"])


def _checkpoints(folder: Path) -> list[Path]:
    """Newest first. A folder gets this name only when it is complete."""
    return sorted(folder.glob("step_*"), reverse=True)
