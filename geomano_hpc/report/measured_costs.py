"""What training and inference cost in the runs of a variant, read from their metrics."""

import json
from dataclasses import dataclass
from typing import Any

from geomano_hpc.launch.logs import last_lines
from geomano_hpc.report.runs import Run, Spread, Variant


@dataclass(frozen=True)
class Costs:
    train: Spread  # seconds of an epoch of training
    infer: Spread  # seconds of a pass over the test split
    memory: Spread  # peak, MB
    places: list[str]  # what it was measured on

    def of(self, kind: str) -> Spread:
        return {"train": self.train, "infer": self.infer, "memory": self.memory}[kind]


def costs_of(variant: Variant) -> Costs:
    """The first epoch, with its compilations and its empty caches, does not count where there are others."""
    train, infer, memory = [], [], []
    places: dict[str, None] = {}
    for run in variant.runs:
        if run.result is None or not run.folder.metrics_file.is_file():
            continue
        lines = [json.loads(line) for line in last_lines(run.folder.metrics_file, 50)]
        lines = [line for line in lines if line["epoch"] > 1] or lines
        train += _mean(lines, "seconds")
        infer += _mean(lines, "test_seconds")
        memory += [max(line["memory_gib"] for line in lines if "memory_gib" in line) * 1024] if _has(lines) else []
        places[place_of(run)] = None
    return Costs(Spread(train), Spread(infer), Spread(memory), list(places))


def _has(lines: list[dict[str, Any]]) -> bool:
    return any("memory_gib" in line for line in lines)


def _mean(lines: list[dict[str, Any]], key: str) -> list[float]:
    found = [float(line[key]) for line in lines if line.get(key) is not None]
    return [sum(found) / len(found)] if found else []


def place_of(run: Run) -> str:
    """The hardware of the run's last start."""
    start = last_start(run)
    hardware = start.get("hardware", {})
    gpus = hardware.get("gpus") or []
    if gpus:
        return f"{start.get('world_size', 1)} x {gpus[0]}"
    threads = start.get("threads", "?")
    cpu = hardware.get("cpu", "a machine that is not recorded")
    return f"{cpu}, {threads} thread{'' if threads == 1 else 's'}"


def last_start(run: Run) -> dict[str, Any]:
    starts = run.folder.starts()
    return starts[-1] if starts else {}
