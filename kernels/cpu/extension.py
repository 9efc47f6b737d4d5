"""Compiles the C++ kernel once into the user's cache and loads it.

The cached library is keyed by its sources, the version of torch and the instruction set of the machine, so that a
cache on a shared home folder serves different nodes. Several processes may ask for it at once: one compiles, the
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

logger = logging.getLogger(__name__)

_SOURCES = Path(__file__).parent / "source"
_LIBRARY = "geo_scan.so"
_INSTRUCTION_SETS = {
    "AVX512": ["-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mfma", "-mf16c"],
    "AVX2": ["-mavx2", "-mfma", "-mf16c"],
}


def flags(capability: str) -> list[str]:
    # at::vec picks its implementation by these two names. No -ffast-math: it would break the rounding in exp2.
    name = capability if capability in _INSTRUCTION_SETS else "DEFAULT"
    chosen = [f"-DCPU_CAPABILITY={name}", f"-DCPU_CAPABILITY_{name}", *_INSTRUCTION_SETS.get(name, [])]
    return ["-O3", "-fopenmp", "-ffp-contract=off", *chosen]


def cached_library() -> Path:
    capability = torch.backends.cpu.get_cpu_capability()
    content = hashlib.sha256(" ".join(flags(capability)).encode())
    for source in sorted(_SOURCES.iterdir()):
        content.update(source.read_bytes())
    torch_version = torch.__version__.replace("+", "-")
    key = f"torch-{torch_version}-{platform.machine()}-{capability.replace(' ', '-')}-{content.hexdigest()[:12]}"
    return _cache() / key / _LIBRARY


def unavailable_because() -> str | None:
    """Why the kernel cannot be had here, or None."""
    if cached_library().exists():
        return None
    for tool in (compiler(), "ninja"):
        if shutil.which(tool, path=_search_path()) is None:
            return f"no {tool} on this machine to compile it (set CXX to a C++ compiler, pip install ninja)"
    return None


def describe() -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    state = "compiled" if cached_library().exists() else f"compiled by {compiler()} on first use"
    return f"C++ with {capability} vectors, {state}, {torch.get_num_threads()} threads"


def compiler() -> str:
    return os.environ.get("CXX", "c++")


def _search_path() -> str:
    """Programs of this Python's environment are found even where it is not activated."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


@lru_cache
def load_library() -> ctypes.CDLL:
    path = cached_library()
    if not path.exists():
        _compile_once(path)
    return ctypes.CDLL(str(path))


def _cache() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "geomano_hpc"
    return Path(os.environ.get("GEOMANO_CACHE") or default) / "kernels"


def _compile_once(path: Path) -> None:
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        lock_file = _beside(path, "lock").open("w")
    except OSError as error:
        raise BackendError(
            f"scan backend 'cpu': cannot write its cache {_cache()}: {error}; set GEOMANO_CACHE to another folder"
        ) from error
    with lock_file:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another process is compiling the scan kernel; waiting for it")
            fcntl.flock(lock_file, fcntl.LOCK_EX)  # released by the system when its owner ends, however it ends
        if not path.exists():
            _compile(path)


def _beside(path: Path, suffix: str) -> Path:
    return path.parent.parent / f"{path.parent.name}.{suffix}"


def _compile(path: Path) -> None:
    from torch.utils import cpp_extension

    capability = torch.backends.cpu.get_cpu_capability()
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
