"""Progress on long work: a bar with the remaining time on a terminal, a plain line now and then in a log file."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[str], None]

_quiet = False


def be_quiet(quiet: bool) -> None:
    """Show no progress from now on, or show it again: `geomano --quiet`."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    return _quiet


@contextmanager
def progress(description: str, total: int, shown: bool = True, done: int = 0) -> Iterator[Advance]:
    """Yield `advance(note)`, to be called once per finished item; the note is shown beside the bar.

    `done` of the items were finished before, and say nothing about the speed.
    """
    if not shown or _quiet:
        yield lambda note: None
    elif sys.stderr.isatty():
        with _bar(description, total, done) as advance:
            yield advance
    else:
        yield _lines(description, total, done)


@contextmanager
def _bar(description: str, total: int, done: int) -> Iterator[Advance]:
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
        task = bar.add_task(description, total=total, completed=done, note="")
        yield lambda note: bar.update(task, advance=1, note=note)


def _lines(description: str, total: int, done: int, every_seconds: float = 10.0) -> Advance:
    done_before = done
    started = last = time.monotonic()

    def advance(note: str) -> None:
        nonlocal done, last
        done += 1
        now = time.monotonic()
        if done == total or now - last >= every_seconds:
            last = now
            seconds_left = (now - started) / (done - done_before) * (total - done)
            left = f", {_duration(seconds_left)} left" if done < total else ""
            print(f"{description} {done}/{total} {note}".rstrip() + left, file=sys.stderr, flush=True)

    return advance


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
