"""Code of the user's at the steps of a training: after each step, epoch and checkpoint, and at the end."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from geomano_hpc.errors import ConfigError, GeomanoError, in_one_line

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """Where a training stands, as a callback sees it.

    Attributes:
        folder: of the run
        model: to be looked at; at ZeRO 3 its parameters are parted over the ranks
        epoch: finished epochs
        epochs: of the whole training
        step: optimiser steps over all epochs
        total_steps: of the whole training
        loss: of the last step, per sample; None if this start took none yet
        metrics: the newest line of metrics.jsonl of this start
        checkpoint: the newest of this start
        result: at the end, what is in result.json

    Examples:
        >>> import geomano_hpc as gm
        >>> class Newest(gm.Callback):
        ...     def on_checkpoint(self, progress: gm.Progress) -> None:
        ...         print(f"step {progress.step} of {progress.total_steps}: {progress.checkpoint}")
    """

    folder: Path
    model: nn.Module
    epoch: int
    epochs: int
    step: int
    total_steps: int
    loss: float | None = None
    metrics: dict[str, Any] | None = None
    checkpoint: Path | None = None
    result: dict[str, Any] | None = None


class Callback:
    """Base class: override what you need. All methods are called on rank 0 only, between steps.

    - Other ranks wait meanwhile: a callback must be done within `training.rank_timeout`, and must call nothing that
      needs all ranks, such as a collective of torch.distributed, or the model at ZeRO 3: the watch over the ranks would
      end the job.
    - Random numbers of torch that a callback draws do not reach the training, and the model is put back into training
      mode.
    - An exception ends the run with an error that names the callback, after the state is saved; started again, the run
      goes on from there. A run that is finished already calls no callback.

    Examples:
        >>> import geomano_hpc as gm
        >>> class Print(gm.Callback):
        ...     def on_epoch(self, progress):
        ...         print(progress.epoch, progress.metrics["test_rel_l2"])
    """

    def on_step(self, progress: Progress) -> None:
        """After each optimiser step."""

    def on_epoch(self, progress: Progress) -> None:
        """After the evaluation at the end of an epoch; `progress.metrics` is its line of metrics.jsonl."""

    def on_checkpoint(self, progress: Progress) -> None:
        """After a checkpoint is on disk, in `progress.checkpoint`."""

    def on_end(self, progress: Progress) -> None:
        """After the result is written; not where a run is stopped or fails."""


class Callbacks:
    """Those of a run. The first that fails is the last that is called; the loop asks for `failure` and ends the run."""

    def __init__(self, callbacks: Sequence[Callback], called: bool) -> None:
        self._callbacks = list(callbacks) if called else []
        self.failure: GeomanoError | None = None

    def __len__(self) -> int:
        return len(self._callbacks)

    def call(self, hook: str, progress: Progress) -> None:
        """`hook` such as on_step."""
        for callback in self._callbacks:
            if self.failure is not None:
                return
            training = progress.model.training
            try:
                with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else []):
                    getattr(callback, hook)(progress)
            except Exception as error:
                name = f"{type(callback).__name__}.{hook}"
                logger.error("the callback %s failed", name, exc_info=True)
                self.failure = GeomanoError(f"{progress.folder}: the callback {name} failed: {in_one_line(error)}")
                self.failure.__cause__ = error
            finally:
                if progress.model.training != training:
                    progress.model.train(training)


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    if isinstance(callbacks, Callback):
        raise ConfigError(f"callbacks: takes a list, such as [{type(callbacks).__name__}()]")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            found = callback.__name__ if isinstance(callback, type) else type(callback).__name__
            hint = f": write {found}()" if isinstance(callback, type) else ""
            raise ConfigError(f"callbacks: {found} is no object of a geomano_hpc.Callback{hint}")
