"""One figure of a benchmark, and how work is timed. Without torch: processes whose memory is measured import this."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """One figure. `at_most` and `at_least` are bars; None where the figure is only shown."""

    name: str
    value: float
    unit: str  # "x" for a ratio within one run, "samples/s", "MiB", "files"
    detail: str  # what was compared with what
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool | None:
        if self.at_least is None and self.at_most is None:
            return None
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
