"""What a submitted job does: train one run folder, and say in the folder how it failed, if it did."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geomano_hpc.errors import FolderInUseError, PreemptedError
from geomano_hpc.launchers import read_ranks
from geomano_hpc.slurm.rendezvous import meet
from geomano_hpc.slurm.requeue import end_preempted
from geomano_hpc.training.records.run_folder import RunFolder


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
        run, is_main = RunFolder(Path(self.run)), read_ranks(os.environ).is_main
        if is_main:
            run.failure_file.unlink(missing_ok=True)
        try:
            return self._train(run)
        except FolderInUseError:
            raise  # the run is not failed: another process is at it
        except Exception as error:
            if not run.failure_file.exists():  # the first rank that fails has the cause, the others its consequence
                run.write_failure(f"{type(error).__name__}: {error}")
            raise
        except SystemExit:
            if not is_main:
                time.sleep(5)  # rank 0 has something to say, and srun ends it when this rank ends
            raise

    def _train(self, run: RunFolder) -> dict[str, Any]:
        from geomano_hpc.training.loop import train

        try:
            return train(run.recipe(), run)
        except PreemptedError as error:
            end_preempted(error, run)

    def checkpoint(self) -> Any:
        """submitit calls this when a signal comes before the training has started: submit it again as it is."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
