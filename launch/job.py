"""What a submitted job does: train one run folder, and say in the folder how it failed, if it did."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geomano_hpc.atomic import write_json
from geomano_hpc.errors import FolderInUseError


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
        run = Path(self.run)
        try:
            from geomano_hpc.training.loop import train
            from geomano_hpc.training.run_folder import RunFolder

            folder = RunFolder(run)
            result = train(folder.recipe(), folder)
            failure_file(run).unlink(missing_ok=True)
            return result
        except FolderInUseError:
            raise  # the run is not failed: another process is at it
        except Exception as error:
            write_json(failure_file(run), {"error": f"{type(error).__name__}: {error}"})
            raise

    def checkpoint(self) -> Any:
        """submitit calls this when the job is about to be preempted or timed out: submit it again as it is."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
