"""Which vectors the C++ kernel computes with: those that torch takes here, or those that GEOMANO_CPU_CAPABILITY names.

torch's own variable, ATEN_CPU_CAPABILITY, is about torch's operations; the kernel follows it where ours is not set.
"""

import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from geomano_hpc.errors import BackendError

VARIABLE = "GEOMANO_CPU_CAPABILITY"


class _Vectors(NamedTuple):
    needs: frozenset[str]  # what /proc/cpuinfo has to list
    flags: tuple[str, ...]  # for the compiler


# The narrowest first.
_CAPABILITIES = {
    "default": _Vectors(frozenset(), ()),
    "avx2": _Vectors(frozenset({"avx2", "fma", "f16c"}), ("-mavx2", "-mfma", "-mf16c")),
    "avx512": _Vectors(
        frozenset({"avx512f", "avx512dq", "avx512vl", "avx512bw", "fma", "f16c"}),
        ("-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mfma", "-mf16c"),
    ),
}
NAMES = tuple(_CAPABILITIES)


class Capability(NamedTuple):
    """The vectors of the kernel, and why these."""

    name: str
    reason: str


def chosen() -> Capability:
    """What the variable asks for, or what torch takes. A word that nobody knows or vectors that the machine lacks are
    an error: they would end the process later, without a word."""
    return _chosen(os.environ.get(VARIABLE, ""))


@lru_cache
def _chosen(word: str) -> Capability:
    if not word:
        return Capability(_of_torch(), "torch's choice for this machine")
    if word not in _CAPABILITIES:
        raise BackendError(f"{VARIABLE} is {word!r}; choose from {', '.join(NAMES)}, or unset it")
    if word not in runnable():
        raise BackendError(f"{VARIABLE} is {word!r}, but this machine can run {', '.join(runnable())} only")
    return Capability(word, f"{VARIABLE} is set")


def runnable() -> tuple[str, ...]:
    """What this machine can run, the narrowest first."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux: what torch takes, and what is narrower
        return NAMES[: NAMES.index(_of_torch()) + 1]
    listed = set(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())
    return tuple(name for name, vectors in _CAPABILITIES.items() if vectors.needs <= listed)


def compiler_flags(name: str) -> list[str]:
    """at::vec picks its implementation by the two macros."""
    return [f"-DCPU_CAPABILITY={name.upper()}", f"-DCPU_CAPABILITY_{name.upper()}", *_CAPABILITIES[name].flags]


def _of_torch() -> str:
    name = torch.backends.cpu.get_cpu_capability().lower()  # such as "no avx" for plain vectors
    return name if name in _CAPABILITIES else "default"
