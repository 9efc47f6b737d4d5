"""The first use of a set of kernels: compiled by one process of a machine, several kernels at a time.

Triton compiles a kernel when it is first launched and keeps it in its own cache on disk. Nothing here is needed for
that: it only spares the other ranks of a node the same work, and the first one the wait for one kernel after the other.

    with compiled_once("2d float32 dstate 16 rank 4", why="the 2d scan"):
        prepare(launches)

The lock and the marks of what is compiled stand in Triton's cache (TRITON_CACHE_DIR), so that they are shared by
exactly those processes that share what is compiled, and go when it goes.
"""

import ast
import fcntl
import hashlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

logger = logging.getLogger(__name__)

_SOURCES = Path(__file__).parent
_compiled_here: set[str] = set()


class Launch(NamedTuple):
    """What `launching.launch` takes, without the grid: a kernel's arguments and its constants."""

    kernel: Any
    arguments: tuple[Any, ...]
    constants: dict[str, Any]


@contextmanager
def compiled_once(key: str, why: str = "these kernels") -> Iterator[None]:
    """The block compiles kernels: the first time on this machine for `key`, the sources, Triton and the GPU, only one
    process is in it, and others wait. They compile then what is missing, if the first one failed or died.

    `key` names all that kernels are compiled for: kind of scan, types, constants. `why` is for people.
    """
    if interpreted():
        yield
        return
    mark = _mark(key)
    if str(mark) in _compiled_here or mark.exists():
        yield
        _compiled_here.add(str(mark))
        return
    lock = _locked(mark.with_suffix(".lock"), why)
    try:
        yield
        _compiled_here.add(str(mark))
        if lock is not None:
            with suppress(OSError):
                mark.touch()
    finally:
        if lock is not None:
            lock.close()


def prepare(launches: Iterable[Launch], workers: int | None = None) -> None:
    """Compile the kernels of these launches side by side, so that the launches themselves find them. Arguments stand
    for all of their type: nothing is read from them. An error of the compiler is raised here as by the launch.

    Threads are enough, since Triton's compiler works without Python's lock: six kernels of 7.8 s in 4.4 s on two cores.
    """
    if interpreted():
        return
    from triton.runtime import driver

    several = list(launches)
    workers = workers or min(len(several), _cores())
    if workers <= 1:
        for launch in several:
            _compile(launch)
        return
    device, set_device = driver.active.get_current_device(), driver.active.set_current_device
    # A thread starts on the first GPU, whatever the one that made it is on.
    pool = ThreadPoolExecutor(workers, initializer=set_device, initargs=(device,))
    with _one_parses_at_a_time(), pool as threads:
        for done in [threads.submit(_compile, launch) for launch in several]:
            done.result()


@contextmanager
def _one_parses_at_a_time() -> Iterator[None]:
    """Python 3.11 counts how deep its syntax trees are for all threads together: of two that make one at the same time,
    one may end with "SystemError: AST constructor recursion depth mismatch", and Triton then keeps a wrong hash."""
    parse, alone = ast.parse, threading.Lock()

    def parse_alone(*arguments: Any, **keywords: Any) -> Any:
        with alone:
            return parse(*arguments, **keywords)

    ast.parse = parse_alone
    try:
        yield
    finally:
        ast.parse = parse


def _compile(launch: Launch) -> None:
    launch.kernel.warmup(*launch.arguments, grid=(1,), **launch.constants)


def interpreted() -> bool:
    """Triton's interpreter compiles nothing, and needs no GPU."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _mark(key: str) -> Path:
    import triton
    from triton.runtime import driver

    content = f"{_sources()} {triton.__version__} {driver.active.get_current_target()} {key}"
    return (
        Path(triton.knobs.cache.dir) / "geomano_hpc" / f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.compiled"
    )


@cache
def _sources() -> str:
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in sorted(_SOURCES.rglob("*.py")))).hexdigest()


def _locked(file: Path, why: str) -> IO[str] | None:
    """The file, locked until it is closed or the process ends; None, said once, where there can be no such file."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.open("w")
    except OSError as error:
        _warn_of(str(file.parent), str(error))
        return None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            start = time.monotonic()
            _say(f"another process compiles {why} on this machine; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
            _say(f"waited {time.monotonic() - start:.0f} s for {why}")
    except OSError as error:  # a file system without locks
        lock.close()
        _warn_of(str(file.parent), str(error))
        return None
    return lock


@cache
def _warn_of(folder: str, reason: str) -> None:
    logger.warning(
        f"no lock in Triton's cache {folder}: {reason}; every rank compiles for itself "
        "(set TRITON_CACHE_DIR to a folder that can be written)"
    )


def _say(message: str) -> None:
    logger.info(message)
    if sys.stderr.isatty():
        print(message, file=sys.stderr)
