"""Files and folders appear whole or not at all: write under a temporary name, flush, rename."""

import contextlib
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from geomano_hpc.errors import GeomanoError


def _temporary_name(path: Path) -> Path:
    """A name of this process's own. What a killed process of this machine left under such a name is removed."""
    host = platform.node()
    for stale in path.parent.glob(f".{path.name}.partial-{host}-*"):
        pid = stale.name.rpartition("-")[2]
        if pid.isdigit() and not _is_alive(int(pid)):
            remove(stale)
    return path.with_name(f".{path.name}.partial-{host}-{os.getpid()}")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # asks, sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def flush(*paths: Path) -> None:
    """Onto the disk, so that a file that has its name has its content too."""
    for path in paths:
        with path.open("rb") as written:
            os.fsync(written.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file name; when the block ends well, the file takes the name `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_name(path)
    try:
        yield temporary
        flush(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder; when the block ends well, it takes the name `path`, which must not exist yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_name(path)
    remove(temporary)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                flush(file)
        try:
            temporary.rename(path)
        except OSError as error:
            reason = "another process made it first; look at what is there" if path.exists() else str(error)
            raise GeomanoError(f"{path}: cannot be put in place: {reason}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def same_file(source: Path, target: Path) -> None:
    """A second name of a file that is only ever replaced, never changed; a copy where there are no such names."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, sort_keys=True) + "\n")
