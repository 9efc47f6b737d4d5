"""What a logger is: it gets the same numbers under the same names as all others. Names stand in config/choices.py."""

import importlib.util
import logging
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from geomano_hpc.config import Recipe
from geomano_hpc.config.by_name import resolve
from geomano_hpc.config.choices import LOGGERS
from geomano_hpc.errors import ConfigError, GeomanoError, in_one_line
from geomano_hpc.training.records.run_folder import RunFolder

logger = logging.getLogger(__name__)

# The name of the curve of each number of an epoch's line.
_EPOCH_CURVES = {
    "train_loss": "loss/train",
    "train_rel_l2": "loss/train_rel_l2",
    "train_gradient_loss": "loss/train_gradient",
    "validation_rel_l2": "rel_l2/validation",
    "test_rel_l2": "rel_l2/test",
    "lr": "training/lr",
    "gradient_norm": "training/gradient_norm",
    "samples_per_second": "training/samples_per_second",
    "data_wait_share": "training/data_wait_share",
    "memory_gib": "training/memory_gib",
}
_OPTIMISER_KEYS = ("optimizer", "optimizer_options", "lr", "weight_decay", "scheduler", "scheduler_options", "warmup")
_TRAINING_KEYS = ("epochs", "batch_size", *_OPTIMISER_KEYS, "clip", "seed", "accumulate", "engine", "zero")


class RunLogger(Protocol):
    """Made on rank 0 as Logger(folder, recipe, finished_steps), where a run starts and where it goes on."""

    package: ClassVar[str]  # that it needs
    takes_figures: ClassVar[bool]

    def scalars(self, step: int, numbers: dict[str, float]) -> None:
        """Numbers by the names of their curves. Every point stands at its optimiser step."""

    def figure(self, name: str, figure: Any, step: int) -> None:
        """A figure of matplotlib, where `takes_figures`."""

    def flush(self) -> None:
        """Called before each checkpoint, which must not outlive the curves that lead to it."""

    def finished(self) -> None:
        """The run has come to its end; called before `close`, which comes however a run ends."""

    def close(self) -> None: ...


class Loggers:
    """Those that the recipe names. One that fails later on is left out with a warning: no server ends a training."""

    def __init__(self, folder: RunFolder, recipe: Recipe, finished_steps: int) -> None:
        self._open: dict[str, RunLogger] = {}
        for name in recipe.training.loggers:
            try:
                self._open[name] = _kind(name)(folder, recipe, finished_steps)
            except Exception as error:
                self.close()
                if isinstance(error, GeomanoError):
                    raise
                raise GeomanoError(f"training.loggers: {name} cannot start: {in_one_line(error)}") from error

    @property
    def takes_figures(self) -> bool:
        return any(one.takes_figures for one in self._open.values())

    def step(self, step: int, numbers: dict[str, float]) -> None:
        self._tell("scalars", step, {f"steps/{name}": value for name, value in numbers.items()})

    def epoch(self, line: dict[str, Any]) -> None:
        self._tell("scalars", line["step"], curves(line))
        self.flush()

    def figure(self, name: str, figure: Any, step: int) -> None:
        self._tell("figure", name, figure, step)

    def flush(self) -> None:
        self._tell("flush")

    def finished(self) -> None:
        self._tell("finished")

    def close(self) -> None:
        self._tell("close")
        self._open.clear()

    def _tell(self, method: str, *arguments: Any) -> None:
        for name, one in list(self._open.items()):
            if method == "figure" and not one.takes_figures:
                continue
            try:
                getattr(one, method)(*arguments)
            except Exception as error:
                del self._open[name]
                logger.warning(
                    "%s failed (%s) and gets no more of this run; metrics.jsonl has everything",
                    name,
                    in_one_line(error),
                )


def check_loggers(names: Sequence[str]) -> None:
    """Before anything is made: the package of each is there."""
    for name in names:
        package = _kind(name).package
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:  # the latter for a folder of that name, as wandb itself leaves behind
            raise ConfigError(
                f"training.loggers: {name} needs the package {package}: pip install 'geomano_hpc[{name}]'"
            )


def curves(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of an epoch's line by the names of their curves."""
    found = {curve: line[key] for key, curve in _EPOCH_CURVES.items() if line.get(key) is not None}
    for split in ("validation", "test"):
        frames = line.get(f"{split}_rel_l2_by_frame") or []
        found |= {f"rel_l2_by_frame/{split}/{number:02d}": error for number, error in enumerate(frames, start=1)}
        fields = line.get(f"{split}_rel_l2_by_field") or {}
        found |= {f"rel_l2_by_field/{split}/{name}": error for name, error in fields.items()}
    return found


def hyperparameters(recipe: Recipe) -> dict[str, bool | int | float | str]:
    """What runs of a study may differ in, by the names of the recipe's keys."""
    content = recipe.model_dump(mode="json")
    training = {key: content["training"][key] for key in _TRAINING_KEYS}
    sections = {"training": training, **{name: content[name] for name in ("model", "loss", "rollout", "compute")}}
    found = {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
    return {key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in found.items()}


def _kind(name: str) -> Any:
    return resolve(LOGGERS[name], "training.loggers")
