"""What a finished training reports of itself."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    """The numbers of a finished run, those of its result.json. `train` returns it; a loaded run has it as `run.result`.

    Attributes:
        folder: the run folder
        rel_l2: relative L2 error of the last weights on the test split, in physical units
        best_rel_l2: the smallest of all evaluations; `load(folder, best=True)` has its weights
        epochs: how many were trained
        parameters: of the model
        train_seconds: time of the training, without its evaluations
        test_samples: how many samples the errors are a mean of
        rel_l2_by_frame: of each predicted frame, for a rollout; else None

    Examples:
        >>> import geomano_hpc as gm
        >>> result = gm.load("runs/darcy/seed-0").result
        >>> result.epochs, result.test_samples
        (1, 4)
        >>> 0 < result.best_rel_l2 <= result.rel_l2
        True
    """

    folder: Path
    rel_l2: float
    best_rel_l2: float | None
    epochs: int
    parameters: int
    train_seconds: float
    test_samples: int
    rel_l2_by_frame: list[float] | None = None

    @staticmethod
    def from_record(folder: Path, record: Mapping[str, Any]) -> "Result":
        """From the content of a result.json."""
        names = {field.name for field in fields(Result)} - {"folder"}
        return Result(folder, **{name: value for name, value in record.items() if name in names})
