"""Progress on long work: a bar with the remaining time on a terminal, a plain line now and then in a log file."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[str], None]


@contextmanager
def progress(description: str, total: int, shown: bool = True) -> Iterator[Advance]:
    """Yield `advance(note)`, to be called once per finished item; the note is shown beside the bar."""
    if not shown:
        yield lambda note: None
    elif sys.stderr.isatty():
        with _bar(description, total) as advance:
            yield advance
    else:
        yield _lines(description, total)


@contextmanager
def _bar(description: str, total: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total, note="")
        yield lambda note: bar.update(task, advance=1, note=note)


def _lines(description: str, total: int, every_seconds: float = 10.0) -> Advance:
    done = 0
    last = time.monotonic()

    def advance(note: str) -> None:
        nonlocal done, last
        done += 1
        now = time.monotonic()
        if done == total or now - last >= every_seconds:
            last = now
            print(f"{description} {done}/{total} {note}".rstrip(), file=sys.stderr, flush=True)

    return advance
