"""Metrics of a run: one JSON line per epoch, and the sums over its steps that they are made of."""

import json
import math
import os
import resource
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from geomano_hpc.atomic import write_text
from geomano_hpc.training.records.run_folder import RunFolder


@dataclass
class EpochSums:
    """Sums over the finished steps of the epoch at work. They are part of a checkpoint, so nothing is counted anew."""

    samples: float = 0.0
    loss: float = 0.0
    relative_l2: float = 0.0
    gradient_loss: float = 0.0
    gradient_norm: float = 0.0
    steps: float = 0.0
    seconds: float = 0.0
    data_wait: float = 0.0
    lr: float = 0.0  # not a sum: of the last step

    def add(self, step: "EpochSums") -> None:
        for name, value in asdict(step).items():
            setattr(self, name, getattr(self, name) + value)
        self.lr = step.lr

    def line(self) -> dict[str, Any]:
        """Of an epoch all of whose batches were left out, no loss is known: NaN, not 0."""
        seconds = max(self.seconds, 1e-9)
        samples, steps = (count or math.nan for count in (self.samples, self.steps))
        return {
            "train_loss": self.loss / samples,
            "train_rel_l2": self.relative_l2 / samples,
            "train_gradient_loss": self.gradient_loss / samples,
            "gradient_norm": self.gradient_norm / steps,
            "lr": self.lr,
            "seconds": self.seconds,
            "samples_per_second": self.samples / seconds,
            "data_wait_share": self.data_wait / seconds,
            "memory_gib": peak_memory_gib(),
        }


def line_of(split: str, judged: "Judged | None", seconds: float) -> dict[str, Any]:
    """What an evaluation adds to the line of its epoch, under the name of its split. A line without one says so."""
    line: dict[str, Any] = {} if split == "test" else {"test_rel_l2": None}
    line[f"{split}_rel_l2"] = None if judged is None else judged.rel_l2
    line[f"{split}_seconds"] = None if judged is None else seconds
    if judged is not None and judged.rel_l2_by_frame is not None:
        line[f"{split}_rel_l2_by_frame"] = judged.rel_l2_by_frame
    if judged is not None and judged.rel_l2_by_field is not None:
        line[f"{split}_rel_l2_by_field"] = judged.rel_l2_by_field
    return line


class Judged(Protocol):
    """An evaluation: see training/evaluate.py."""

    @property
    def rel_l2(self) -> float: ...
    @property
    def rel_l2_by_frame(self) -> list[float] | None: ...
    @property
    def rel_l2_by_field(self) -> dict[str, float] | None: ...


def peak_memory_gib() -> float:
    """The most that this process held so far: of the GPU where there is one, else of the machine."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class MetricsFile:
    def __init__(self, folder: RunFolder, finished_epochs: int) -> None:
        """Keep what belongs to the finished epochs and drop what a killed process wrote after its last checkpoint."""
        kept = [line for line in folder.metrics() if line["epoch"] <= finished_epochs]
        write_text(folder.metrics_file, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = folder.metrics_file.open("a", encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())  # a checkpoint that follows must not outlive its metrics

    def close(self) -> None:
        self._file.close()
