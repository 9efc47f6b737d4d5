"""What a run shows in TensorBoard: curves over optimiser steps, figures, and its hyperparameters beside its errors."""

import time
from pathlib import Path
from typing import Any, ClassVar

from geomano_hpc.config import Recipe
from geomano_hpc.training.loggers.logger import hyperparameters
from geomano_hpc.training.records.run_folder import RunFolder


class TensorBoard:
    """Every point stands at its optimiser step, so that one number tells what a killed process wrote too much."""

    package: ClassVar[str] = "tensorboard"
    takes_figures: ClassVar[bool] = True

    def __init__(self, folder: RunFolder, recipe: Recipe, finished_steps: int) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        before = list(folder.tensorboard.glob("events.*"))
        _wait_for_a_later_name(before)
        started_before = bool(before)  # perhaps without a checkpoint
        purge = finished_steps + 1 if started_before else None
        self._writer = SummaryWriter(str(folder.tensorboard), purge_step=purge)
        # Not add_hparams: it makes a run of its own for every run. And not the summary of an experiment, which
        # TensorBoard would take from one run for all: it collects the keys of all, those that differ first.
        _, start, self._end_of_session = hparams(hyperparameters(recipe), {})
        self._file.add_summary(start)
        self._writer.flush()

    @property
    def _file(self) -> Any:
        return self._writer._get_file_writer()

    def scalars(self, step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, global_step=step)

    def figure(self, name: str, figure: Any, step: int) -> None:
        self._writer.add_figure(name, figure, global_step=step)

    def flush(self) -> None:
        self._writer.flush()

    def finished(self) -> None:
        self._file.add_summary(self._end_of_session)

    def close(self) -> None:
        self._writer.close()


def _wait_for_a_later_name(files: list[Path]) -> None:
    """TensorBoard reads files in the order of their names, which begin with the second of their start: of two starts
    within one second, the later might be read first, and be cut off by the earlier."""
    last = max((int(file.name.split(".")[3]) for file in files), default=0)
    while last >= int(time.time()) > last - 2:  # a clock that was set back further is not waited for
        time.sleep(0.05)
