"""The run folder: what one run leaves behind, and the only place that knows its file names.

config.yaml       the resolved recipe                     metrics.jsonl   one line per epoch
environment.json  versions, hardware, backend, data hash  tensorboard/    the same as curves
checkpoints/      to go on from                           logs/           what the processes printed
model.safetensors the trained weights                     result.json     written last: the run is finished
best.safetensors  those of the smallest test error        profile/        of `geomano train --profile`
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geomano_hpc.atomic import write_json, write_text
from geomano_hpc.config import Recipe, recipe_from_mapping, to_yaml
from geomano_hpc.config.yaml_text import read_yaml
from geomano_hpc.errors import ConfigError, FolderInUseError, GeomanoError


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
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def weights_file(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def best_weights_file(self) -> Path:
        return self.path / "best.safetensors"

    @property
    def profile(self) -> Path:
        return self.path / "profile"

    def weights(self, best: bool = False) -> Path:
        """The weights of the end of the training, or of the evaluation with the smallest error so far."""
        file = self.best_weights_file if best else self.weights_file
        if not file.is_file():
            raise GeomanoError(f"{self.path}: the run has no trained weights yet (no {file.name})")
        return file

    @property
    def result_file(self) -> Path:
        return self.path / "result.json"

    @property
    def is_finished(self) -> bool:
        return self.result_file.is_file()

    def recipe(self) -> Recipe:
        if not self.config_file.is_file():
            raise ConfigError(f"{self.path}: not a run folder (no config.yaml)")
        source = str(self.config_file)
        return recipe_from_mapping(read_yaml(self.config_file.read_text(encoding="utf-8"), source), source)

    def write_recipe(self, recipe: Recipe) -> None:
        """Keep the resolved recipe; a folder never changes its recipe."""
        if self.config_file.is_file():
            if self.recipe() != recipe:
                raise ConfigError(
                    f"{self.path} holds a run with another configuration; choose another --out, "
                    f"or compare with {self.config_file}"
                )
            return
        write_text(self.config_file, to_yaml(recipe))

    def metrics(self) -> list[dict[str, Any]]:
        if not self.metrics_file.is_file():
            return []
        # A line that was cut off by a kill has no line end: it does not count.
        lines = self.metrics_file.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def result(self) -> dict[str, Any] | None:
        return json.loads(self.result_file.read_text(encoding="utf-8")) if self.is_finished else None

    def write_result(self, result: dict[str, Any]) -> None:
        write_json(self.result_file, result)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder, so that no second process trains in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as lock:
            for _ in range(20):  # `is_held` takes the lock for a moment, too
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.05)
            else:
                raise FolderInUseError(f"{self.path}: another process is training in this run folder")
            yield

    @property
    def is_held(self) -> bool:
        """Whether a process on this machine holds the folder."""
        lock = self.path / ".lock"
        if not lock.is_file():
            return False
        with lock.open("r") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def run_folders(study: Path) -> list[RunFolder]:
    """The runs of a study, or the one run if the folder is a run itself."""
    if (study / "config.yaml").is_file():
        return [RunFolder(study)]
    if not study.is_dir():
        raise ConfigError(f"{study}: no such study or run folder")
    found = [RunFolder(Path(entry.path)) for entry in os.scandir(study) if (Path(entry.path) / "config.yaml").is_file()]
    return sorted(found, key=lambda run: run.path.name)
