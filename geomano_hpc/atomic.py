"""Files and folders appear whole or not at all: write under a temporary name, flush, rename."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial-{os.getpid()}")


def _flush(path: Path) -> None:
    with path.open("rb") as written:
        os.fsync(written.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file name; when the block ends well, the file takes the name `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_name(path)
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder; when the block ends well, it takes the name `path`, which must not exist yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_name(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _flush(file)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, sort_keys=True) + "\n")
