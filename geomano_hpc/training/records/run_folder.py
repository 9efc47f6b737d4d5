"""The run folder: what one run leaves behind, and the only place that knows its file names.

config.yaml       the resolved recipe                     metrics.jsonl   one line per epoch
environment.json  versions, hardware, backend, data hash  tensorboard/    the same as curves
checkpoints/      to go on from                           logs/train.log  what the training said
model.safetensors the trained weights                     result.json     written last: the run is finished
best.safetensors  those of the least validation error     trace/          of `geomano train --trace`
failure.json      why the last start failed               cancelled.json  it was stopped on purpose
job.json          the job that a launch started for it    requeues.json   starts of that job without a step
predictions.npz   of a few test samples, for pictures     .lock           held by the process that trains in it
loggers.json      how wandb and mlflow know the run       wandb/ mlflow/  their files, where training.loggers has them
"""

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geomano_hpc.atomic import write_json, write_text
from geomano_hpc.config import Recipe, recipe_from_mapping, to_yaml
from geomano_hpc.config.yaml_text import read_mapping
from geomano_hpc.errors import ConfigError, DataError, FolderInUseError, GeomanoError, in_one_line
from geomano_hpc.locks import is_locked, try_lock


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def environment_file(self) -> Path:
        return self.path / "environment.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def mlflow(self) -> Path:
        return self.path / "mlflow"

    @property
    def logger_ids_file(self) -> Path:
        return self.path / "loggers.json"

    @property
    def log_file(self) -> Path:
        return self.path / "logs" / "train.log"

    @property
    def weights_file(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def best_weights_file(self) -> Path:
        return self.path / "best.safetensors"

    @property
    def predictions_file(self) -> Path:
        return self.path / "predictions.npz"

    @property
    def trace(self) -> Path:
        return self.path / "trace"

    def weights(self, best: bool | None = None) -> Path:
        """Those of the end of the training, or those that the validation split chose; by default those that the result
        is of."""
        if best is None:
            best = (self.result() or {}).get("weights") == "best"
        result = self.result()
        if best and result is not None and "validation_rel_l2" not in result and self.best_weights_file.is_file():
            raise GeomanoError(f"{self.path}: its best weights were chosen on the test split, by an earlier version")
        file = self.best_weights_file if best else self.weights_file
        if not file.is_file():
            if best and self.weights_file.is_file():
                raise GeomanoError(
                    f"{self.path}: has no best weights: they are chosen on a validation split, and its data has none"
                )
            raise GeomanoError(f"{self.path}: the run has no trained weights yet (no {file.name})")
        return file

    @property
    def result_file(self) -> Path:
        return self.path / "result.json"

    @property
    def failure_file(self) -> Path:
        return self.path / "failure.json"

    @property
    def cancelled_file(self) -> Path:
        return self.path / "cancelled.json"

    @property
    def job_file(self) -> Path:
        return self.path / "job.json"

    @property
    def requeues_file(self) -> Path:
        return self.path / "requeues.json"

    @property
    def lock_file(self) -> Path:
        return self.path / ".lock"

    @property
    def is_run(self) -> bool:
        return self.config_file.is_file()

    @property
    def has_started(self) -> bool:
        """Whether an epoch was finished here."""
        return self.metrics_file.is_file() and self.metrics_file.stat().st_size > 0

    @property
    def is_finished(self) -> bool:
        return self.result_file.is_file()

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled_file.is_file()

    def recipe(self) -> Recipe:
        return self._recipe(recorded=False)

    def recorded_recipe(self) -> Recipe:
        """What was trained, for a reader: without torch, and without the package of the model (see RecordedModel)."""
        return self._recipe(recorded=True)

    def _recipe(self, recorded: bool) -> Recipe:
        if not self.is_run:
            raise ConfigError(f"{self.path}: not a run folder (no {self.config_file.name})")
        source = str(self.config_file)
        content = read_mapping(self.config_file.read_text(encoding="utf-8"), source)
        return recipe_from_mapping(content, source, recorded)

    def write_recipe(self, recipe: Recipe) -> None:
        """Keep the resolved recipe; a folder never changes its recipe."""
        if self.is_run:
            if self.recipe() != recipe:
                raise ConfigError(
                    f"{self.path} holds a run with another configuration; choose another --out, "
                    f"or compare with {self.config_file}"
                )
            return
        write_text(self.config_file, to_yaml(recipe))

    def logger_id(self, name: str) -> str | None:
        """Under which id a logger knows this run, from the start of the run on."""
        return (_read_json(self.logger_ids_file) or {}).get(name)

    def keep_logger_id(self, name: str, identity: str) -> str:
        write_json(self.logger_ids_file, {**(_read_json(self.logger_ids_file) or {}), name: identity})
        return identity

    def metrics(self) -> list[dict[str, Any]]:
        if not self.metrics_file.is_file():
            return []
        # A line that was cut off by a kill has no line end: it does not count.
        lines = self.metrics_file.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def starts(self) -> list[dict[str, Any]]:
        """The environment of every start of the run, the last one last."""
        return list((_read_json(self.environment_file) or {}).get("starts", []))

    def add_start(self, environment: dict[str, Any]) -> None:
        write_json(self.environment_file, {"starts": [*self.starts(), environment]})

    def result(self) -> dict[str, Any] | None:
        return _read_json(self.result_file)

    def write_result(self, result: dict[str, Any]) -> None:
        write_json(self.result_file, result)

    def failure(self) -> str | None:
        """Why the last start failed, as it said itself or as its launch found out."""
        content = _read_json(self.failure_file)
        return None if content is None else str(content["error"])

    def write_failure(self, error: str) -> None:
        write_json(self.failure_file, {"error": error})

    def write_cancelled(self, at: str, by: str) -> None:
        write_json(self.cancelled_file, {"at": at, "by": by})

    def clear_marks(self) -> None:
        """Before it is started again: it has neither failed nor been cancelled."""
        self.failure_file.unlink(missing_ok=True)
        self.cancelled_file.unlink(missing_ok=True)

    def job(self) -> dict[str, Any]:
        """The job that a launch started for the run, the last of them; empty for a run that no launch started."""
        return _read_json(self.job_file) or {}

    def write_job(self, cluster: str, job_id: str, folder: Path) -> None:
        """`folder` is where submitit keeps the files of its jobs."""
        write_json(self.job_file, {"cluster": cluster, "job_id": job_id, "folder": str(folder)})

    def count_requeue(self) -> int:
        """How often a start was stopped since the newest checkpoint was written, this time too."""
        newest = max((path.name for path in self.checkpoints.glob("[!.]*")), default="")
        before = _read_json(self.requeues_file) or {}
        times = int(before["times"]) + 1 if before.get("checkpoint") == newest else 1
        write_json(self.requeues_file, {"checkpoint": newest, "times": times})
        return times

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder, so that no second process trains in it.

        Where the block fails before the run has begun, the folder is left as it was found, or is not left at all.
        """
        _refuse_file_in_the_way(self.log_file.parent)
        was_planned, as_found = self.config_file.is_file(), self.noted()
        lock = try_lock(self.lock_file)
        if lock is None:
            raise FolderInUseError(f"{self.path}: another process is training in this run folder")
        with lock:
            try:
                yield
            except BaseException:
                if not was_planned and not self.environment_file.is_file():
                    as_found()
                raise

    def noted(self) -> Callable[[], None]:
        """Note what is there of what a start writes before the run begins. Calling what is returned removes the rest:
        files, lines of the log, and folders that are empty then."""
        written = (self.config_file, self.log_file, self.lock_file)
        new, made = [file for file in written if not file.exists()], _missing_folders(self.log_file.parent)
        logged = self.log_file.stat().st_size if self.log_file.is_file() else 0

        def as_found() -> None:
            for file in new:
                file.unlink(missing_ok=True)
            if self.log_file.is_file() and self.log_file.stat().st_size > logged:
                os.truncate(self.log_file, logged)
            for folder in made:
                with contextlib.suppress(OSError):  # it holds something else
                    folder.rmdir()

        return as_found

    @property
    def is_held(self) -> bool:
        """Whether a process on this machine holds the folder."""
        if not self.lock_file.is_file():
            return False
        with self.lock_file.open("r") as lock:
            return is_locked(lock)


def _missing_folders(path: Path) -> list[Path]:
    """The folder and those above it that are not there yet, the deepest first."""
    return list(itertools.takewhile(lambda folder: not folder.exists(), (path, *path.parents)))


def _refuse_file_in_the_way(path: Path) -> None:
    found = next(folder for folder in (path, *path.parents) if folder.exists())
    if not found.is_dir():
        raise ConfigError(f"{found} is a file, and a run needs a folder there; choose another --out, or move the file")


def run_folders(study: Path) -> list[RunFolder]:
    """The runs of a study, or the one run if the folder is a run itself."""
    if RunFolder(study).is_run:
        return [RunFolder(study)]
    if not study.is_dir():
        raise ConfigError(f"{study}: no such study or run folder")
    found = [run for entry in os.scandir(study) if (run := RunFolder(Path(entry.path))).is_run]
    return sorted(found, key=lambda run: run.path.name)


def _read_json(file: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is no file."""
    if not file.is_file():
        return None
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise DataError(f"{file} is damaged ({in_one_line(error)}); bring it back from a copy, or remove it") from None
