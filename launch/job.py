"""What a submitted job does: train one run folder, and say in the folder how it failed, if it did."""

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geomano_hpc.atomic import write_json
from geomano_hpc.errors import FolderInUseError, PreemptedError
from geomano_hpc.slurm.rendezvous import meet
from geomano_hpc.slurm.requeue import end_preempted


def failure_file(run: Path) -> Path:
    return run / "failure.json"


def last_failure(run: Path) -> str | None:
    file = failure_file(run)
    return str(json.loads(file.read_text(encoding="utf-8"))["error"]) if file.is_file() else None


@dataclass(frozen=True)
class TrainRun:
    """A picklable job. It resumes from the newest checkpoint, so the cluster may start it as often as it likes."""

    run: str
    working_folder: str
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self) -> dict[str, Any]:
        os.chdir(self.working_folder)
        os.environ.update(self.environment)  # before torch is imported
        meet()
        run, is_main = Path(self.run), os.environ.get("RANK", "0") == "0"
        if is_main:
            failure_file(run).unlink(missing_ok=True)
        try:
            return self._train(run)
        except FolderInUseError:
            raise  # the run is not failed: another process is at it
        except Exception as error:
            if not failure_file(run).exists():  # the first rank that fails has the cause, the others its consequence
                write_json(failure_file(run), {"error": f"{type(error).__name__}: {error}"})
            raise
        except SystemExit:
            if not is_main:
                time.sleep(5)  # rank 0 has something to say, and srun ends it when this rank ends
            raise

    def _train(self, run: Path) -> dict[str, Any]:
        from geomano_hpc.training.loop import train
        from geomano_hpc.training.records.run_folder import RunFolder

        folder = RunFolder(run)
        try:
            return train(folder.recipe(), folder)
        except PreemptedError as error:
            end_preempted(error, run)

    def checkpoint(self) -> Any:
        """submitit calls this when a signal comes before the training has started: submit it again as it is."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
