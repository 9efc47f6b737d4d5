"""The device that a benchmark measures, and what its file says of a GPU."""

from dataclasses import asdict
from typing import Any

import torch

from geomano_hpc.errors import ConfigError


def measured_device(asked: str | None) -> torch.device:
    """`cpu`, or a GPU such as `cuda` and `cuda:1`; by default the GPU where there is one."""
    try:
        device = torch.device(asked or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {asked}: expected cpu, cuda, or a GPU by its number as in cuda:1")
    if device.type == "cuda":
        seen = torch.cuda.device_count()
        if (device.index or 0) >= seen:
            raise ConfigError(f"--device {asked}: torch sees {seen} GPUs here; choose another, or cpu")
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)  # kernels start on the current one
    return device


def describe_gpu(device: torch.device) -> dict[str, Any]:
    """Name, driver and versions, and the verdict of the self-test on it."""
    from geomano_hpc.kernels.selftest.verdict import identify, kept_verdict

    identity = identify(device)
    kept = kept_verdict(identity)
    return {**asdict(identity), "self_test": "not run yet: geomano doctor" if kept is None else kept.summary}
