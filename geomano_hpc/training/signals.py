"""Signals that ask a training to stop: they set a flag, and the loop acts on it at the next step boundary."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from geomano_hpc.launchers import speaks_for_all

# Slurm sends SIGTERM before it preempts or ends a job; submitit asks for SIGUSR2 some time before; SIGINT is Ctrl-C.
STOP_SIGNALS = (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)
# One Ctrl-C reaches a rank more than once: from the terminal, and from the launcher, which hands it on.
_ONE_CTRL_C = 1.0  # seconds
_SAYS = b"\nstopping: the state is saved at the next step; Ctrl-C again ends at once, with what was saved before\n"


class StopRequest:
    """Whether this process was asked to stop, and by which signal first. The other ranks learn of it from the loop."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._interrupted_at: float | None = None

    @property
    def by_user(self) -> bool:
        """By Ctrl-C."""
        return self.received == signal.SIGINT

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
        if number != signal.SIGINT:
            return
        if self._interrupted_at is None:
            self._interrupted_at = time.monotonic()
            if speaks_for_all(os.environ):
                os.write(2, _SAYS)  # print may be at work already where the signal came
        elif time.monotonic() - self._interrupted_at > _ONE_CTRL_C:
            raise KeyboardInterrupt


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Catch the stop signals; the handlers that were there before (submitit's) are back when the block ends.

    A process in the background that ignores Ctrl-C goes on ignoring it. Outside of the main thread Python allows no
    handlers: whoever runs a training there handles signals itself.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    in_background = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    caught = STOP_SIGNALS[:-1] if in_background else STOP_SIGNALS
    before = {number: signal.signal(number, request) for number in caught}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
