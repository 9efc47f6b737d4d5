"""What a run shows in TensorBoard: curves over optimiser steps, figures, and its hyperparameters beside its errors."""

from typing import Any

from geomano_hpc.config import Recipe
from geomano_hpc.training.records.run_folder import RunFolder

# TensorBoard's name for each number of an epoch's line.
_EPOCH_CURVES = {
    "train_loss": "loss/train",
    "train_rel_l2": "loss/train_rel_l2",
    "train_gradient_loss": "loss/train_gradient",
    "test_rel_l2": "rel_l2/test",
    "lr": "training/lr",
    "gradient_norm": "training/gradient_norm",
    "samples_per_second": "training/samples_per_second",
    "data_wait_share": "training/data_wait_share",
    "memory_gib": "training/memory_gib",
}
_TRAINING_KEYS = ("epochs", "batch_size", "lr", "weight_decay", "clip", "seed", "accumulate", "engine", "zero")


class TensorBoard:
    """Every point stands at its optimiser step, so that one number tells what a killed process wrote too much."""

    def __init__(self, folder: RunFolder, recipe: Recipe, finished_steps: int) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        started_before = any(folder.tensorboard.glob("events.*"))  # perhaps without a checkpoint
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

    def step(self, step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(f"steps/{name}", value, global_step=step)

    def epoch(self, line: dict[str, Any]) -> None:
        for key, curve in _EPOCH_CURVES.items():
            if line.get(key) is not None:
                self._writer.add_scalar(curve, line[key], global_step=line["step"])
        frames = line.get("test_rel_l2_by_frame") or []
        for number, error in enumerate(frames, start=1):
            self._writer.add_scalar(f"rel_l2_by_frame/{number:02d}", error, global_step=line["step"])
        self._writer.flush()

    def figure(self, name: str, figure: Any, step: int) -> None:
        self._writer.add_figure(name, figure, global_step=step)

    def flush(self) -> None:
        self._writer.flush()

    def finished(self) -> None:
        self._file.add_summary(self._end_of_session)

    def close(self) -> None:
        self._writer.close()


def hyperparameters(recipe: Recipe) -> dict[str, bool | int | float | str]:
    """What runs of a study may differ in, by the names of the recipe's keys."""
    content = recipe.model_dump(mode="json")
    training = {key: content["training"][key] for key in _TRAINING_KEYS}
    sections = {"model": content["model"], "loss": content["loss"], "training": training, "compute": content["compute"]}
    found = {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
    return {key: value if isinstance(value, bool | int | float | str) else str(value) for key, value in found.items()}
