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
        rel_l2: relative L2 error on the test split, in physical units, averaged over the fields
        weights: "best", those that the validation split chose, or "last" where the data has no such split
        validation_rel_l2: the error of the best weights on the validation split; None where there is none
        epochs: how many were trained
        parameters: of the model
        train_seconds: time of the training, without its evaluations
        test_samples: how many samples the errors are a mean of
        rel_l2_by_frame: of each predicted frame, for a rollout; else None
        rel_l2_by_field: of each field by its name, where there are several; else None

    Examples:
        >>> import geomano_hpc as gm
        >>> result = gm.load("runs/darcy/seed-0").result
        >>> result.epochs, result.test_samples
        (1, 4)
        >>> result.weights, result.validation_rel_l2
        ('last', None)
    """

    folder: Path
    rel_l2: float
    epochs: int
    parameters: int
    train_seconds: float
    test_samples: int
    rel_l2_by_frame: list[float] | None = None
    rel_l2_by_field: dict[str, float] | None = None
    weights: str = "last"
    validation_rel_l2: float | None = None

    @staticmethod
    def from_record(folder: Path, record: Mapping[str, Any]) -> "Result":
        """From the content of a result.json."""
        names = {field.name for field in fields(Result)} - {"folder"}
        return Result(folder, **{name: value for name, value in record.items() if name in names})
