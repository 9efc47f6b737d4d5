"""Locks of the file system. They end with the process that holds them, so a kill leaves nothing to clean up."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def one_at_a_time(file: Path) -> Iterator[None]:
    """Wait until no other process is in such a block with this file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def try_lock(file: Path) -> IO[str] | None:
    """The file, locked until it is closed; None where another process holds it."""
    for _ in range(20):  # `is_locked` takes the lock for a moment, too
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.open("w")
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock.fileno()), file.stat()):  # else its holder removed it meanwhile
                return lock
        lock.close()
        time.sleep(0.05)
    return None


def is_locked(opened: IO[str]) -> bool:
    """Whether a process holds the file, as far as its file system tells between machines."""
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
