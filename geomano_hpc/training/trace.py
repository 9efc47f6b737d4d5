"""Where the time of a step goes: a trace of some steps for the browser, and a table for the terminal."""

import gzip
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from geomano_hpc.atomic import replacing
from geomano_hpc.errors import ConfigError

WARM_UP, MEASURED = 3, 6  # steps
PARTS = ("data", "forward", "backward", "agreement", "optimizer")


def part(name: str, traced: bool) -> AbstractContextManager[Any]:
    """A block of the step under its name in the trace; nothing where nobody traces."""
    return record_function(f"geomano: {name}") if traced else nullcontext()


def steps_to_measure(in_training: int) -> int:
    """As many as there are after those to warm up, and not too many."""
    if in_training <= WARM_UP:
        raise ConfigError(
            f"--trace measures steps after {WARM_UP} to warm up, and this training has {in_training}; "
            f"it needs at least {WARM_UP + 1}: raise training.epochs"
        )
    return min(MEASURED, in_training - WARM_UP)


@contextmanager
def tracing(folder: Path, rank: int, measured: int, say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Yield `stepped()`, to be called after every step: True when enough steps were measured."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    plan = torch.profiler.schedule(wait=0, warmup=WARM_UP, active=measured, repeat=1)
    file = folder / f"trace_rank{rank}.json.gz"
    steps = 0

    def done(profiler: Any) -> None:
        raw = folder / f".trace_rank{rank}.json"
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(raw))
        with raw.open("rb") as plain, replacing(file) as temporary, gzip.open(temporary, "wb") as packed:
            shutil.copyfileobj(plain, packed)
        raw.unlink()
        for line in table(profiler.key_averages(), measured):
            say(line)
        say(f"wrote {file} (open it at ui.perfetto.dev, or with chrome://tracing)")

    with torch.profiler.profile(activities=activities, schedule=plan, on_trace_ready=done, acc_events=True) as profiler:

        def stepped() -> bool:
            nonlocal steps
            steps += 1
            profiler.step()
            return steps >= WARM_UP + measured

        yield stepped


def table(events: Any, measured: int, operators: int = 12) -> list[str]:
    """Time by part of the step, then the operators that take most of it themselves, in milliseconds per step."""
    found = {event.key: event for event in events}
    parts = [(name, found[f"geomano: {name}"]) for name in PARTS if f"geomano: {name}" in found]
    whole = sum(event.cpu_time_total for _, event in parts) or 1.0
    lines = [f"{'part of a step':30} {'ms':>9} {'share':>7}"]
    for name, event in parts:
        spent = event.cpu_time_total
        lines.append(f"{name:30} {spent / 1e3 / measured:9.2f} {spent / whole:7.1%}")
    on_gpu = torch.cuda.is_available()
    cost = {e.key: (e.self_device_time_total if on_gpu else e.self_cpu_time_total) for e in events}
    own = {key: spent for key, spent in cost.items() if not key.startswith(("geomano: ", "ProfilerStep"))}
    total = sum(own.values()) or 1.0
    lines += [
        "",
        f"{'operator (its own time on the ' + ('GPU' if on_gpu else 'CPU') + ')':44} {'ms':>9} {'share':>7} calls",
    ]
    for key in sorted(own, key=lambda key: -own[key])[:operators]:
        calls = found[key].count / measured
        lines.append(f"{key[:44]:44} {own[key] / 1e3 / measured:9.2f} {own[key] / total:7.1%} {calls:.0f}")
    return lines
