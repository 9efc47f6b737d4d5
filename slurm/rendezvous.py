"""How the ranks of one run find each other: submitit's environment, with a port of its own for every start."""

import os
import random

# Below the range that Linux takes the ports of outgoing connections from (32768 and up).
_PORTS = (20000, 32000)


def meet() -> None:
    """Export MASTER_ADDR, MASTER_PORT, RANK and the rest for a task of a Slurm step. One task alone needs nothing.

    submitit takes the port from the job's number, which a requeue keeps: the port may still be held by what is left of
    the start before. So the number of restarts counts, too.
    """
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) == 1:
        return
    from submitit.helpers import TorchDistributedEnvironment

    os.environ["MASTER_PORT"] = str(port(os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_RESTART_COUNT", "0")))
    # Each rank sees all GPUs of its node and takes the one of its local rank.
    TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)


def port(job: str, restarts: str) -> int:
    return random.Random(f"{job}-{restarts}").randint(*_PORTS)  # noqa: S311 (no secret)
