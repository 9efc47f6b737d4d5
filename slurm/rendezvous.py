"""How the ranks of one run find each other: submitit's environment, with a port of its own for every start."""

import os
import random

from geomano_hpc.launchers import meeting_port, own_job, restarts_of_job, tasks_of_step

# Below the range that Linux takes the ports of outgoing connections from (32768 and up).
_PORTS = (20000, 32000)


def meet() -> None:
    """Export what torchrun would tell a rank, for a task of a Slurm step. One task alone needs nothing.

    submitit takes the port from the job's number, which a requeue keeps: the port may still be held by what is left of
    the start before. So the number of restarts counts, too.
    """
    _, tasks = tasks_of_step(os.environ)
    if tasks == 1:
        return
    from submitit.helpers import TorchDistributedEnvironment

    os.environ.update(meeting_port(port(str(own_job(os.environ)), restarts_of_job(os.environ))))
    # Each rank sees all GPUs of its node and takes the one of its local rank.
    TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)


def port(job: str, restarts: str) -> int:
    return random.Random(f"{job}-{restarts}").randint(*_PORTS)  # noqa: S311 (no secret)
