"""Lists of what is in a file are read once, not once for every variable."""

from collections.abc import Callable
from functools import lru_cache, wraps
from pathlib import Path
from typing import TypeVar

Answer = TypeVar("Answer")


def remembered(function: Callable[[Path], Answer]) -> Callable[[Path], Answer]:
    """The same answer for the same file, until it is written again."""

    @lru_cache(maxsize=4)
    def known(path: Path, *stamp: int) -> Answer:
        return function(path)

    @wraps(function)
    def answer(path: Path) -> Answer:
        found = path.stat()
        return known(path, found.st_mtime_ns, found.st_size, found.st_ino)

    return answer
