"""Errors that a benchmark found before it was killed: each is computed once by one revision of the code."""

import json
from collections.abc import Callable
from pathlib import Path

import geomano_hpc
from geomano_hpc.atomic import write_json
from geomano_hpc.training.records.revision import git_revision


class Remembered:
    """The file is written after each. What another revision found is not taken: its model may compute otherwise."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._by = git_revision() or geomano_hpc.__version__
        content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        self._errors: dict[str, float] = content["errors"] if content.get("by") == self._by else {}

    def error(self, key: str, compute: Callable[[], float]) -> float:
        if key not in self._errors:
            self._errors[key] = compute()
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._file, {"by": self._by, "errors": self._errors})
        return self._errors[key]
