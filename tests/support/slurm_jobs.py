"""Studies on the Slurm testbed: submitting them, finding them in mid-training, and waiting for their end."""

import json
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geomano_hpc.config import Recipe, to_yaml
from geomano_hpc.errors import GeomanoError
from geomano_hpc.launch import Study, plan
from geomano_hpc.launch.run import submit_to_slurm
from geomano_hpc.slurm import ClusterProfile
from geomano_hpc.slurm.testbed import Testbed
from geomano_hpc.training.records.run_folder import RunFolder

PACE = Path(__file__).parents[1] / "slurm" / "pace"
FULL_SPEED = Path("full_speed")
PATIENCE = 900.0  # seconds, for a slow and busy machine


def profile(seconds_per_step: float = 0, **keys: Any) -> ClusterProfile:
    """One core of node1, no GPU, and steps that take so long, until `full_speed`."""
    pace = {"SECONDS_PER_STEP": str(seconds_per_step), "FULL_SPEED": str(FULL_SPEED.resolve())}
    slowly = {"PYTHONPATH": str(PACE), **pace}
    defaults = {"gpus": 0, "cpus": 1, "time": "10", "sbatch": {"nodelist": "node1"}}
    return ClusterProfile(**{**defaults, "environment": slowly if seconds_per_step else {}, **keys})


def full_speed() -> None:
    """From now on no step waits in the runs that were submitted from this folder."""
    FULL_SPEED.touch()


@dataclass(frozen=True)
class SubmittedRun:
    folder: RunFolder
    job: str
    testbed: Testbed

    @property
    def state(self) -> str:
        """Slurm's word for it now; its last word once it has ended."""
        words = self.testbed.run("sacct", "-X", "-n", "-P", "-j", self.job, "-o", "State").split()
        return words[0] if words else "UNKNOWN"

    def told(self) -> str:
        """What there is to know if it does not end as expected."""
        jobs = self.folder.path.parent / "jobs"
        logs = [file.read_text() for file in sorted(jobs.glob(f"{self.job}_*_log.*"))]
        return "\n".join([f"{self.job} is {self.state}", self.testbed.run("squeue", "--format=%i %T %r %N"), *logs])

    def wait_until_training(self, epochs: int = 1) -> None:
        """In mid-training: so many epochs are done, and more are to come."""
        wait_for(lambda: len(self.folder.metrics()) >= epochs, self.told)
        assert not self.folder.is_finished

    def wait_until_finished(self) -> None:
        wait_for(lambda: self.folder.is_finished, self.told)


def submit_study(
    testbed: Testbed,
    recipe: Recipe,
    seeds: int,
    chosen: ClusterProfile,
    name: str = "s",
    report: bool = False,
    **keys: Any,
) -> list[SubmittedRun]:
    Path(f"{name}.yaml").write_text(to_yaml(recipe))
    study = Study(name=name, recipe=f"{name}.yaml", seeds=list(range(seeds)), **keys)
    runs, folder = plan(study), Path("runs").resolve() / name
    outcome = submit_to_slurm(study, runs, folder, chosen, report)
    assert len(outcome.started) == len(runs)
    folders = [RunFolder(folder / run.name) for run in runs]
    return [SubmittedRun(run, json.loads((run.path / "job.json").read_text())["job_id"], testbed) for run in folders]


def wait_for(what: Callable[[], object], told: Callable[[], object] = lambda: "") -> None:
    limit = time.monotonic() + PATIENCE
    while True:
        with suppress(GeomanoError, subprocess.TimeoutExpired):  # a Slurm too busy to answer is asked again
            if what():
                return
        assert time.monotonic() < limit, f"not within {PATIENCE} s; {told()}"
        time.sleep(0.3)
