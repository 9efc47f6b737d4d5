"""What a benchmark leaves behind: one JSON file, the same for all of them.

command       geomano bench kernels, train, accuracy or data
settings      what it was asked for: sizes, rounds, recipes
date          when it was written, UTC
machine       host, CPU with its vectors, cores, threads of torch, GPUs
gpu           where one was measured: name, compute capability, driver, hash of the kernels, verdict of the self-test
versions      of this package and its revision, Python, and the packages that numbers depend on
rows          list of what was timed or trained, a table's rows; the keys are the benchmark's own
measurements  list of single figures, each with name, value, unit, detail, at_least, at_most and met (None: no bar)
"""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import geomano_hpc
from geomano_hpc.atomic import write_json
from geomano_hpc.bench.measurement import Measurement
from geomano_hpc.training.records.environment import hardware, package_versions
from geomano_hpc.training.records.revision import git_revision


def make_record(
    part: str,
    settings: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]] = (),
    measurements: Sequence[Measurement] = (),
    gpu: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of the file that is described above."""
    return {
        "command": f"geomano bench {part}",
        "settings": dict(settings),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**hardware(), "threads": torch.get_num_threads()},
        "gpu": None if gpu is None else dict(gpu),
        "versions": {
            "geomano_hpc": geomano_hpc.__version__,
            "git_revision": git_revision(),
            "python": platform.python_version(),
            **package_versions(),
        },
        "rows": [dict(row) for row in rows],
        "measurements": [{**asdict(one), "met": one.met} for one in measurements],
    }


def write_record(out: Path | None, content: Mapping[str, Any]) -> None:
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, dict(content))


def measurement_table(content: Mapping[str, Any]) -> list[str]:
    """The figures with their bars, for people."""
    lines = [f"{'what':40}  {'value':>10} {'unit':11}  {'bar':>8}  {'':6}  compared"]
    for row in content["measurements"]:
        low, high = row["at_least"], row["at_most"]
        bar = f">= {low:g}" if low is not None else f"<= {high:g}" if high is not None else ""
        verdict = {None: "", True: "met", False: "missed"}[row["met"]]
        figure = f"{row['value']:10.4g} {row['unit']:11}"
        lines.append(f"{row['name']:40}  {figure}  {bar:>8}  {verdict:6}  {row['detail']}")
    return lines
