"""Benchmark of the data's way: generation, conversion, loading. Ratios within one run, each against its bar."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from geomano_hpc.bench.measurement import Measurement
from geomano_hpc.bench.record import make_record, write_record

PARTS = ("generation", "conversion", "loading")


def bench_data(parts: Sequence[str], quick: bool, out: Path | None) -> dict[str, Any]:
    measurements: list[Measurement] = []
    for part in parts:
        found = import_module(f"geomano_hpc.bench.data.{part}").measure(quick)
        measurements += [replace(one, name=f"{part}: {one.name}") for one in found]
    content = make_record("data", {"parts": list(parts), "quick": quick}, measurements=measurements)
    write_record(out, content)
    return content
