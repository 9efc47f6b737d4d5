"""Predictions of a few test samples that a run leaves behind, so that pictures of them need neither model nor data.

The file has `kind`, steady or rollout, `input`, `truth` and `prediction` in physical units [B, H, W, C], and the names
of the fields. Axes: B samples, H x W grid, C channels (the fields of each frame, frame by frame).
"""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from geomano_hpc.atomic import replacing
from geomano_hpc.errors import GeomanoError


@dataclass(frozen=True)
class Predictions:
    kind: str
    input_BHWC: np.ndarray
    truth_BHWC: np.ndarray
    predicted_BHWC: np.ndarray
    inputs: tuple[str, ...] = ("input",)  # fields of a given frame
    targets: tuple[str, ...] = ("u",)
    units: tuple[str, ...] = ()  # of the targets
    split: str = "test"
    frames_in: int | None = None  # given of a rollout; behind their fields is what does not change in time

    def write(self, file: Path) -> None:
        with replacing(file) as temporary, temporary.open("wb") as opened:
            np.savez_compressed(
                opened,
                kind=np.array(self.kind),
                input=self.input_BHWC,
                truth=self.truth_BHWC,
                prediction=self.predicted_BHWC,
                inputs=np.array(self.inputs),
                targets=np.array(self.targets),
                units=np.array(self.units, dtype=str),
                split=np.array(self.split),
                frames_in=np.array(self.frames_in or 0),
            )

    @staticmethod
    def read(file: Path) -> "Predictions":
        if not file.is_file():
            raise GeomanoError(f"{file.parent}: has no {file.name}; a run of an earlier version did not write it")
        try:
            with np.load(file, allow_pickle=False) as arrays:
                fields = (arrays["input"], arrays["truth"], arrays["prediction"])
                names: dict[str, Any] = {
                    name: tuple(map(str, arrays[name])) for name in ("inputs", "targets", "units") if name in arrays
                }
                split = str(arrays["split"]) if "split" in arrays else "test"
                frames_in = int(arrays["frames_in"]) or None if "frames_in" in arrays else None
                return Predictions(str(arrays["kind"]), *fields, **names, split=split, frames_in=frames_in)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise GeomanoError(f"{file}: cannot be read ({error})") from error
