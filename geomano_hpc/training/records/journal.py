"""What rank 0 tells of a training: metrics.jsonl, TensorBoard, the log and the progress bar. Other ranks are silent."""

import contextlib
import logging
from types import TracebackType
from typing import Any

import torch

from geomano_hpc.config import Recipe
from geomano_hpc.progress import progress
from geomano_hpc.training.loggers.tensorboard import TensorBoard
from geomano_hpc.training.records.checkpoint import Position
from geomano_hpc.training.records.metrics import EpochSums, MetricsFile
from geomano_hpc.training.records.run_folder import RunFolder

logger = logging.getLogger(__name__)


class Journal:
    def __init__(self, recipe: Recipe, folder: RunFolder, position: Position, total_steps: int, shown: bool) -> None:
        self._recipe, self._open = recipe, contextlib.ExitStack()
        self._metrics: MetricsFile | None = None
        self._tensorboard: TensorBoard | None = None
        if shown:
            self._metrics = self._open.enter_context(contextlib.closing(MetricsFile(folder, position.epoch)))
            self._tensorboard = self._open.enter_context(contextlib.closing(TensorBoard(folder, recipe, position.step)))
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
        if self._tensorboard is not None and position.step % config.log_every == 0:
            numbers = {"loss": loss, "gradient_norm": sums.gradient_norm, "lr": sums.lr}
            self._tensorboard.step(position.step, numbers)

    def epoch(self, line: dict[str, Any]) -> None:
        if self._metrics is not None and self._tensorboard is not None:
            self._metrics.write(line)
            self._tensorboard.epoch(line)
            logger.info("epoch %d/%d %s", line["epoch"], self._recipe.training.epochs, _words(line))

    def figures(
        self,
        task: str,
        fields: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        weights: dict[str, torch.Tensor],
        step: int,
    ) -> None:
        """Input, truth and prediction of some samples [B, H, W, C], and the learned correction of the weights."""
        if self._tensorboard is None:
            return
        from geomano_hpc.training.records import pictures

        given, truth, predicted = (field.detach().cpu().float() for field in fields)
        drawn = {"fields": pictures.draw_fields(task, pictures.rows_of(task, given, truth, predicted))}
        if task == "rollout" and truth.shape[1] == truth.shape[2]:
            drawn["spectra"] = pictures.draw_spectra(truth, predicted)
        corrections = pictures.draw_corrections(weights)
        if corrections is not None:
            drawn["correction_R"] = corrections
        for name, figure in drawn.items():
            self._tensorboard.figure(name, figure, step)

    def flush(self) -> None:
        if self._tensorboard is not None:
            self._tensorboard.flush()

    def finished(self) -> None:
        if self._tensorboard is not None:
            self._tensorboard.finished()


def _words(line: dict[str, Any]) -> str:
    test = "" if line["test_rel_l2"] is None else f" test rel-L2 {line['test_rel_l2']:.5f}"
    speed = f"{line['samples_per_second']:.1f} samples/s, {line['data_wait_share']:.1%} waiting for data"
    return f"loss {line['train_loss']:.5f}{test} lr {line['lr']:.2e} {speed}"
