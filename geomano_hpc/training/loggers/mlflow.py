"""The same curves in MLflow: files in the run folder, unless MLFLOW_TRACKING_URI names another place."""

import logging
import os
import time
from typing import Any, ClassVar

from geomano_hpc.config import Recipe
from geomano_hpc.errors import ConfigError
from geomano_hpc.training.loggers.logger import hyperparameters
from geomano_hpc.training.records.run_folder import RunFolder

_LONGEST = 500  # characters of a parameter's value that every server of MLflow takes


class MLflow:
    """One run of MLflow for one run folder; the experiment has the recipe's name."""

    package: ClassVar[str] = "mlflow"
    takes_figures: ClassVar[bool] = False

    def __init__(self, folder: RunFolder, recipe: Recipe, finished_steps: int) -> None:
        place = os.environ.get("MLFLOW_TRACKING_URI") or folder.mlflow.resolve().as_uri()
        if place.startswith("file:"):
            # MLflow would rather have a database, and asks for this word. Files need no further package.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        import mlflow

        self._client = mlflow.tracking.MlflowClient(place)
        self._status = "KILLED"  # until the run has come to its end
        self._last: dict[str, int] = {}
        kept = folder.logger_id("mlflow")
        if kept is None:
            self._id = folder.keep_logger_id("mlflow", self._start(folder, recipe))
        else:
            self._id = kept
            try:
                self._client.update_run(kept, status="RUNNING")
            except mlflow.exceptions.MlflowException as error:
                raise ConfigError(
                    f"training.loggers: {place} does not know the mlflow run {kept} of {folder.path} "
                    f"({' '.join(str(error).split())}); set MLFLOW_TRACKING_URI as at the start of the run, or remove "
                    f"{folder.logger_ids_file}"
                ) from error

    def _start(self, folder: RunFolder, recipe: Recipe) -> str:
        from mlflow.entities import Param

        known = self._client.get_experiment_by_name(recipe.name)
        experiment = self._client.create_experiment(recipe.name) if known is None else known.experiment_id
        identity = str(self._client.create_run(experiment, run_name=folder.path.name).info.run_id)
        said = [Param(key, str(value)[:_LONGEST]) for key, value in hyperparameters(recipe).items()]
        self._client.log_batch(identity, params=said)
        return identity

    def scalars(self, step: int, numbers: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        new = [Metric(name, value, now, step) for name, value in numbers.items() if step > self._last_step(name)]
        self._client.log_batch(self._id, metrics=new)
        self._last.update({metric.key: step for metric in new})

    def _last_step(self, name: str) -> int:
        """A process that was killed may have written more than its last checkpoint knows: the same numbers."""
        if name not in self._last:
            before = self._client.get_metric_history(self._id, name)
            self._last[name] = max((metric.step for metric in before), default=0)
        return self._last[name]

    def figure(self, name: str, figure: Any, step: int) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Every point is written at once."""

    def finished(self) -> None:
        self._status = "FINISHED"

    def close(self) -> None:
        self._client.set_terminated(self._id, self._status)
