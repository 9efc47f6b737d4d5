"""Ctrl-C reaches every process of a terminal: children that must not act on it by themselves."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def children_ignore_ctrl_c() -> Iterator[None]:
    """Processes that are started in this block ignore Ctrl-C. Whoever started them ends them, in its own way."""
    if threading.current_thread() is not threading.main_thread():  # only there Python allows it
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
