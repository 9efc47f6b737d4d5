"""What commands print: results on stdout, in words or as one JSON object, and notes on stderr unless --quiet."""

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from geomano_hpc.progress import is_quiet

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else (see docs/commands.md).")]


def note(text: str) -> None:
    """Something beside the result, for people."""
    if not is_quiet():
        typer.echo(text, err=True)


def print_json(content: dict[str, Any], one_line: bool = False) -> None:
    """An object that any JSON reader takes: null for numbers that are none, paths as text."""
    typer.echo(json.dumps(_plain(content), indent=None if one_line else 2, allow_nan=False, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


@contextlib.contextmanager
def stdout_for(json_: bool) -> Iterator[None]:
    """With --json, what is printed in this block goes to stderr: by this package, by libraries, by child processes."""
    if not json_:
        yield
        return
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()  # what a library kept there for later
        os.dup2(stdout, 1)
        os.close(stdout)
