"""The states of a run, and how they are told: from its folder, from the launch that has claimed it, from its job."""

from typing import Literal

from geomano_hpc.training.records.run_folder import RunFolder

State = Literal["running", "queued", "pending", "stopped", "failed", "cancelled", "done"]
STATES: tuple[State, ...] = ("running", "queued", "pending", "stopped", "failed", "cancelled", "done")

# Somebody is at these: a launch leaves them alone, `cancel` stops them.
ACTIVE: tuple[State, ...] = ("running", "queued")
# These have come to an end for now, well or not.
ENDED: tuple[State, ...] = ("done", "failed", "cancelled", "stopped")
# `retry` takes these.
TO_RETRY: tuple[State, ...] = ("failed", "stopped", "cancelled")
# Nobody is at these: a launch starts them.
TO_START: tuple[State, ...] = ("pending", *TO_RETRY)

JobState = Literal["queued", "running", "failed", "cancelled", "ended"]


def state_of(folder: RunFolder, claimed: bool = False, job: JobState | None = None) -> State:
    """`claimed`: a living launch is going to start it. `job`: what the cluster says of its job, if it has one there."""
    if folder.is_finished:
        return "done"
    if folder.is_held:
        return "running"
    if job == "queued" or job == "running":
        return job
    if folder.failure_file.is_file():
        return "failed"
    if folder.is_cancelled or job == "cancelled":
        return "cancelled"
    if claimed:
        return "queued"
    if job is not None:
        return "failed" if job == "failed" else "stopped"
    return "stopped" if folder.has_started else "pending"
