"""What rank 0 tells of a training: metrics.jsonl, loggers, the log and the progress bar. Other ranks are silent."""

import contextlib
import logging
from types import TracebackType
from typing import Any

import torch

from geomano_hpc.config import Recipe
from geomano_hpc.progress import progress
from geomano_hpc.training.loggers.logger import Loggers
from geomano_hpc.training.records.checkpoint import Position
from geomano_hpc.training.records.metrics import EpochSums, MetricsFile
from geomano_hpc.training.records.predictions import Predictions
from geomano_hpc.training.records.run_folder import RunFolder

logger = logging.getLogger(__name__)


class Journal:
    def __init__(self, recipe: Recipe, folder: RunFolder, position: Position, total_steps: int, shown: bool) -> None:
        self._recipe, self._open = recipe, contextlib.ExitStack()
        self._metrics: MetricsFile | None = None
        self._loggers: Loggers | None = None
        if shown:
            self._metrics = self._open.enter_context(contextlib.closing(MetricsFile(folder, position.epoch)))
            self._loggers = self._open.enter_context(contextlib.closing(Loggers(folder, recipe, position.step)))
        self._advance = self._open.enter_context(progress(recipe.name, total_steps, shown, position.step))

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def step(self, position: Position, loss: float, sums: EpochSums) -> None:
        """`loss` per sample; `sums` of this step alone."""
        config = self._recipe.training
        self._advance(f"epoch {position.epoch + 1}/{config.epochs} loss {loss:.4f}")
        if self._loggers is not None and position.step % config.log_every == 0:
            numbers = {"loss": loss, "gradient_norm": sums.gradient_norm, "lr": sums.lr}
            self._loggers.step(position.step, numbers)

    def epoch(self, line: dict[str, Any]) -> None:
        if self._metrics is not None and self._loggers is not None:
            self._metrics.write(line)
            self._loggers.epoch(line)
            logger.info("epoch %d/%d %s", line["epoch"], self._recipe.training.epochs, _words(line))

    def figures(self, shown: Predictions, weights: dict[str, torch.Tensor], step: int, periodic: bool) -> None:
        """Of some samples, and of the learned correction in the weights. Spectra are of flows on a torus."""
        if self._loggers is None or not self._loggers.takes_figures:
            return
        from geomano_hpc.training.records import pictures

        drawn = {"fields": pictures.draw_fields(shown)}
        _, height, width, _ = shown.truth_BHWC.shape
        if shown.kind == "rollout" and height == width and periodic:
            drawn["spectra"] = pictures.draw_spectra(shown)
        learned = {name: tensor.numpy() for name, tensor in weights.items() if name.endswith(pictures.CORRECTION)}
        corrections = pictures.draw_corrections(learned)
        if corrections is not None:
            drawn["correction_R"] = corrections
        for name, figure in drawn.items():
            self._loggers.figure(name, figure, step)

    def flush(self) -> None:
        if self._loggers is not None:
            self._loggers.flush()

    def finished(self) -> None:
        if self._loggers is not None:
            self._loggers.finished()


def _words(line: dict[str, Any]) -> str:
    judged = ""
    for split in ("validation", "test"):
        if line.get(f"{split}_rel_l2") is not None:
            judged = f" {split} rel-L2 {line[f'{split}_rel_l2']:.5f}"
            fields = line.get(f"{split}_rel_l2_by_field") or {}
            judged += f" ({', '.join(f'{name} {error:.5f}' for name, error in fields.items())})" if fields else ""
    speed = f"{line['samples_per_second']:.1f} samples/s, {line['data_wait_share']:.1%} waiting for data"
    return f"loss {line['train_loss']:.5f}{judged} lr {line['lr']:.2e} {speed}"
