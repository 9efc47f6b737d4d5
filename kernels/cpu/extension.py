"""Compiles the C++ kernel once into the user's cache and loads it.

The cached library is keyed by its sources, the version of torch and the vectors that it computes with, so that a cache
on a shared home folder serves different nodes. Several processes may ask for it at once: one compiles, the
others wait, and a killed compilation leaves neither a lock nor half a library.
"""

import ctypes
import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import torch

from geomano_hpc.errors import BackendError
from geomano_hpc.kernels.cache import cache_folder
from geomano_hpc.kernels.cpu.capability import chosen, compiler_flags

logger = logging.getLogger(__name__)

_SOURCES = Path(__file__).parent / "source"
_LIBRARY = "geo_scan.so"
OPTIMISATION = "-O3"


def flags(capability: str) -> list[str]:
    # No -ffast-math: it would break the rounding in exp2.
    return [OPTIMISATION, "-fopenmp", "-ffp-contract=off", *compiler_flags(capability)]


def cached_library(capability: str) -> Path:
    content = hashlib.sha256(" ".join(flags(capability)).encode())
    for source in sorted(_SOURCES.iterdir()):
        content.update(source.read_bytes())
    torch_version = torch.__version__.replace("+", "-")
    key = f"torch-{torch_version}-{platform.machine()}-{capability.upper()}-{content.hexdigest()[:12]}"
    return cache_folder() / "kernels" / key / _LIBRARY


def unavailable_because() -> str | None:
    """Why the kernel cannot be had here, or None."""
    if cached_library(chosen().name).exists():
        return None
    for tool in (compiler(), "ninja"):
        if shutil.which(tool, path=_search_path()) is None:
            return f"no {tool} on this machine to compile it (set CXX to a C++ compiler, pip install ninja)"
    return None


def describe() -> str:
    capability = chosen()
    state = "compiled" if cached_library(capability.name).exists() else f"compiled by {compiler()} on first use"
    return f"C++ with {capability.name} vectors ({capability.reason}), {state}, {torch.get_num_threads()} threads"


def compiler() -> str:
    return os.environ.get("CXX", "c++")


def _search_path() -> str:
    """Programs of this Python's environment are found even where it is not activated."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def load_library() -> ctypes.CDLL:
    return _load(chosen().name, OPTIMISATION)


@lru_cache
def _load(capability: str, optimisation: str) -> ctypes.CDLL:
    path = cached_library(capability)
    if not path.exists():
        _compile_once(path, capability)
    return ctypes.CDLL(str(path))


def _compile_once(path: Path, capability: str) -> None:
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        lock_file = _beside(path, "lock").open("w")
    except OSError as error:
        raise BackendError(
            f"scan backend 'cpu': cannot write its cache {path.parent.parent}: {error}; "
            "set GEOMANO_CACHE to another folder"
        ) from error
    with lock_file:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another process is compiling the scan kernel; waiting for it")
            fcntl.flock(lock_file, fcntl.LOCK_EX)  # released by the system when its owner ends, however it ends
        if not path.exists():
            _compile(path, capability)


def _beside(path: Path, suffix: str) -> Path:
    return path.parent.parent / f"{path.parent.name}.{suffix}"


def _compile(path: Path, capability: str) -> None:
    from torch.utils import cpp_extension

    _say(f"compiling the scan kernel for {capability} (once, about a minute) into {path.parent}")
    with tempfile.TemporaryDirectory(prefix=f"{path.parent.name}.", dir=path.parent.parent) as folder:
        before = os.environ.get("PATH", os.defpath)
        os.environ["PATH"] = _search_path()
        try:
            cpp_extension.load(
                name=path.stem,
                sources=[str(source) for source in sorted(_SOURCES.glob("*.cpp"))],
                extra_cflags=flags(capability),
                extra_include_paths=[str(_SOURCES)],
                build_directory=folder,
                is_python_module=False,
            )
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            log = _beside(path, "log")
            log.write_text(str(error))
            raise BackendError(
                f"scan backend 'cpu' does not compile with {compiler()}: see {log}; "
                "or choose another backend by name (model.scan_backend: torch)"
            ) from error
        finally:
            os.environ["PATH"] = before
        path.parent.mkdir(exist_ok=True)
        next(Path(folder).glob("*.so")).rename(path)  # a second compilation of a process gets another name


def _say(message: str) -> None:
    logger.info(message)
    if sys.stderr.isatty():
        print(message, file=sys.stderr)
