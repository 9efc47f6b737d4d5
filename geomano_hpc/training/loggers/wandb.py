"""The same curves in Weights & Biases: offline into the run folder, unless WANDB_MODE says otherwise."""

import os
import uuid
from typing import Any, ClassVar

from geomano_hpc.config import Recipe
from geomano_hpc.training.loggers.logger import hyperparameters
from geomano_hpc.training.records.run_folder import RunFolder


class WandB:
    """One run of Weights & Biases for one run folder. `wandb sync <run>/wandb/offline-run-*` sends it to a server.

    Points that a killed process wrote after its last checkpoint are written again, with the same numbers.
    """

    package: ClassVar[str] = "wandb"
    takes_figures: ClassVar[bool] = False

    def __init__(self, folder: RunFolder, recipe: Recipe, finished_steps: int) -> None:
        import wandb

        self._exit_code = 1  # until the run has come to its end
        identity = folder.logger_id("wandb") or folder.keep_logger_id("wandb", uuid.uuid4().hex[:12])
        self._run = wandb.init(
            dir=str(folder.path.resolve()),
            project=os.environ.get("WANDB_PROJECT", recipe.name),
            name=folder.path.name,
            id=identity,
            resume="allow",
            mode=None if "WANDB_MODE" in os.environ else "offline",
            config=hyperparameters(recipe),
            settings=wandb.Settings(silent=True, console="off"),  # what the run prints is in its own log
        )

    def scalars(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log(numbers, step=step)

    def figure(self, name: str, figure: Any, step: int) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Its own process writes as it goes."""

    def finished(self) -> None:
        self._exit_code = 0

    def close(self) -> None:
        self._run.finish(exit_code=self._exit_code)
