"""Start again what did not finish, the way it was launched last."""

from collections.abc import Sequence
from pathlib import Path

from geomano_hpc.config.explain import validated
from geomano_hpc.errors import ConfigError
from geomano_hpc.launch.manifest import kept_study, read_manifest
from geomano_hpc.launch.run import Outcome, run_here, submit_to_slurm
from geomano_hpc.launch.status import study_states
from geomano_hpc.launch.study import PlannedRun
from geomano_hpc.slurm import ClusterProfile
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.records.run_state import ACTIVE, TO_RETRY


def runs_to_retry(study: Path, named: Sequence[str]) -> list[PlannedRun]:
    """The named runs, or all that failed, stopped or were cancelled. What was never started is for `launch`."""
    states = study_states(study)
    for name in named:
        if states[name] in ("done", *ACTIVE):
            raise ConfigError(f"{name} is {states[name]}: nothing to retry")
    chosen = named or [name for name, state in states.items() if state in TO_RETRY]
    points = read_manifest(study).runs
    return [PlannedRun(name, RunFolder(study / name).recipe(), points.get(name, {})) for name in chosen]


def retry(study: Path, runs: Sequence[PlannedRun], at_once: int | None) -> tuple[str, Outcome]:
    """Where they were started, and the outcome."""
    launches = read_manifest(study).launches
    if not launches:
        raise ConfigError(f"{study}: no launch is known here; start it with `geomano launch`")
    last = launches[-1]
    if last["cluster"] == "slurm":
        changes = {} if at_once is None else {"at_once": at_once}
        profile = validated(ClusterProfile, {**last["options"], **changes}, f"the last launch of {study}")
        return "slurm", submit_to_slurm(kept_study(study), runs, study, profile, last.get("report", True))
    return "local", run_here(kept_study(study), runs, study, at_once or int(last["options"]["at_once"]))
