"""Benchmark of the data's way: generation, conversion, loading. Ratios within one run, each against its bar."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from geomano_hpc.atomic import write_json
from geomano_hpc.bench.measurement import Measurement
from geomano_hpc.training.records.environment import hardware, package_versions

PARTS = ("generation", "conversion", "loading")


def bench_data(parts: Sequence[str], quick: bool, out: Path | None) -> dict[str, Any]:
    measured: dict[str, list[Measurement]] = {}
    for part in parts:
        measured[part] = import_module(f"geomano_hpc.bench.data_{part}").measure(quick)
    content = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "threads": torch.get_num_threads(),
        "hardware": hardware(),
        "packages": package_versions(),
        "measurements": [
            {"part": part, **asdict(measurement), "met": measurement.met}
            for part, measurements in measured.items()
            for measurement in measurements
        ],
    }
    if out is not None:
        write_json(out, content)
    return content


def table(content: dict[str, Any]) -> list[str]:
    lines = [f"{'part':10}  {'what':28}  {'value':>10} {'unit':11}  {'bar':>8}  {'':6}  compared"]
    for row in content["measurements"]:
        low, high = row["at_least"], row["at_most"]
        bar = f">= {low:g}" if low is not None else f"<= {high:g}" if high is not None else ""
        verdict = {None: "", True: "met", False: "missed"}[row["met"]]
        lines.append(
            f"{row['part']:10}  {row['name']:28}  {row['value']:10.4g} {row['unit']:11}  {bar:>8}  {verdict:6}  "
            f"{row['detail']}"
        )
    return lines
