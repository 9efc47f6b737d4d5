"""Metrics of a run: one JSON line per epoch, and the same numbers as TensorBoard curves."""

import json
import os
from typing import Any

from geomano_hpc.atomic import write_text
from geomano_hpc.training.run_folder import RunFolder

# TensorBoard's name for each number.
_CURVES = {
    "train_loss": "loss/train",
    "test_rel_l2": "rel_l2/test",
    "lr": "training/lr",
    "samples_per_second": "training/samples_per_second",
    "data_wait_share": "training/data_wait_share",
}


class MetricsWriter:
    def __init__(self, folder: RunFolder, finished_epochs: int) -> None:
        """Keep what belongs to the finished epochs and drop what a killed process wrote after its last checkpoint."""
        from torch.utils.tensorboard import SummaryWriter

        kept = [line for line in folder.metrics() if line["epoch"] <= finished_epochs]
        write_text(folder.metrics_file, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = folder.metrics_file.open("a", encoding="utf-8")
        self._tensorboard = SummaryWriter(str(folder.tensorboard), purge_step=finished_epochs + 1)

    def write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())  # a checkpoint that follows must not outlive its metrics
        for key, curve in _CURVES.items():
            if line.get(key) is not None:
                self._tensorboard.add_scalar(curve, line[key], global_step=line["epoch"])
        self._tensorboard.flush()

    def close(self) -> None:
        self._file.close()
        self._tensorboard.close()
