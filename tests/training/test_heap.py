"""What a training on CPUs asks of the C library's memory, in processes of their own."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from geomano_hpc.training.heap import keep_freed_memory

did = keep_freed_memory() if sys.argv[1] == "keep" else None
for step in range(8):
    if step == 4:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2**20) for _ in range(8)]  # 4 MiB each
    del tensors
print(did, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(argument: str, **environment: str) -> tuple[str, int]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PROGRAM, argument]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env={**clean, **environment})
    did, faults = found.stdout.split()
    return did, int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_asked_of_the_system_once() -> None:
    assert run("keep")[0] == "True"
    _, faults = run("leave")
    _, kept_faults = run("keep")
    assert faults > 1000  # of the 4 * 8192 pages that four steps touch
    assert kept_faults < 200


def test_settings_of_the_environment_win() -> None:
    assert run("keep", MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"
    assert run("keep", GLIBC_TUNABLES="glibc.malloc.trim_threshold=131072")[0] == "False"
