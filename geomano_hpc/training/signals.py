"""Signals that ask a training to stop: they set a flag, and the loop acts on it at the next step boundary."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Slurm sends SIGTERM before it preempts or ends a job; submitit asks for SIGUSR2 some time before that.
STOP_SIGNALS = (signal.SIGUSR2, signal.SIGTERM)


class StopRequest:
    """Whether this process was asked to stop, and by which signal. The other ranks learn of it from the loop."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Catch the stop signals; the handlers that were there before (submitit's) are back when the block ends.

    Outside of the main thread Python allows no handlers: whoever runs a training there handles signals itself.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request) for number in STOP_SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
