"""What this machine has for local runs: its GPUs, asked without loading torch, and a share of it for each run."""

import functools
import os
import subprocess
from importlib import metadata

_WITHOUT_GPUS = 2  # runs at the same time


def runs_at_once() -> int:
    """A run for each GPU; two on a machine without."""
    return len(visible_gpus()) or _WITHOUT_GPUS


def share_of_machine(place: int, places: int) -> dict[str, str]:
    """The share of this machine that a run at one of the places gets: its threads and its GPU."""
    # The cores that this process may use, not those of the machine: two threads on one core wait for each other.
    environment = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // places))}
    gpus = visible_gpus()
    if gpus:  # submitit hides all GPUs from a local job that asks for none
        environment["CUDA_VISIBLE_DEVICES"] = gpus[place % len(gpus)]
    return environment


def visible_gpus() -> list[str]:
    """The GPUs that torch would use here, by the names that CUDA_VISIBLE_DEVICES has for them."""
    if not _torch_has_gpus():
        return []
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return [str(index) for index in range(_installed_gpus())]
    names = [name.strip() for name in shown.split(",")]
    ends = [place for place, name in enumerate(names) if name in ("", "-1")]  # CUDA stops at the first that is none
    return names[: ends[0]] if ends else names


@functools.cache
def _torch_has_gpus() -> bool:
    """Whether the installed torch was built for GPUs."""
    return not metadata.version("torch").endswith("+cpu")


@functools.cache
def _installed_gpus() -> int:
    """As NVIDIA's own tool counts them; a torch for AMD is asked itself."""
    if "+rocm" in metadata.version("torch"):
        import torch

        return torch.cuda.device_count()
    command = ["nvidia-smi", "-L"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in found.stdout.splitlines())
