"""What a training on CPUs asks of the C library's memory, in processes of their own."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from geomano_hpc.training.engines.heap import keep_freed_memory

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


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library"),
]


def test_freed_memory_is_asked_of_the_system_once() -> None:
    _, faults = run("leave", MALLOC_MMAP_THRESHOLD_="131072")  # every tensor comes from the system
    did, kept_faults = run("keep")
    assert did == "True"
    assert faults > 50  # four steps touch 32,768 pages, or 64 huge ones
    assert kept_faults < faults / 4


def test_more_than_two_gigabytes_are_kept() -> None:
    """Memory that nobody writes to costs nothing."""
    program = """
import ctypes
from pathlib import Path
from geomano_hpc.training.engines.heap import keep_freed_memory

keep_freed_memory()
malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.restype, malloc.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
for block in [malloc(30 * 2**20) for _ in range(100)]:
    free(block)
heap = next(line for line in Path("/proc/self/maps").read_text().splitlines() if "[heap]" in line).split()[0]
first, last = (int(address, 16) for address in heap.split("-"))
print((last - first) >> 20)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(found.stdout) >= 3000


def test_settings_of_the_environment_win() -> None:
    assert run("keep", MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"
    assert run("keep", GLIBC_TUNABLES="glibc.malloc.trim_threshold=131072")[0] == "False"
    assert run("keep", MALLOC_ARENA_MAX="2")[0] == "True"  # has nothing to do with it
