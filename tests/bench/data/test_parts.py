"""The benchmark of the data's way: numbers first, a verdict beside every bar, and a file that says where it ran."""

import json
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from geomano_hpc.bench.data import loading
from geomano_hpc.bench.data.parts import bench_data
from geomano_hpc.bench.measurement import Measurement
from geomano_hpc.bench.record import measurement_table
from geomano_hpc.cli.app import main
from geomano_hpc.data import Normaliser, Signature, Split
from geomano_hpc.errors import GeomanoError

STEADY = Signature("steady", ("a",), ("u",), Normaliser(0.0, 1.0), Normaliser(0.0, 1.0))


def test_quick_benchmark_of_loading_writes_ratios_with_date_and_hardware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loading, "GRID", 33)
    monkeypatch.setattr(loading, "STEP_SECONDS", 0.002)
    out = tmp_path / "made" / "bench.json"
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "data", "--part", "loading", "--quick", "--out", str(out)])
    content = json.loads(out.read_text())
    assert content["machine"]["cores"]
    assert content["versions"]["zarr"]
    rows = {row["name"].removeprefix("loading: "): row for row in content["measurements"]}
    assert {"plain zarr-python", "streamed, direct", "streamed, tensorstore", "streamed, zarr", "in memory"} <= set(
        rows
    )
    assert all(row["name"].startswith("loading: ") and row["value"] > 0 for row in rows.values())
    assert rows["streamed, direct"]["at_least"] == 3
    assert rows["in memory"]["at_least"] == 0.9
    assert all((row["met"] is None) == (row["at_least"] is None) for row in rows.values())
    assert "streamed, tensorstore" in capsys.readouterr().out


def test_every_part_is_measured_and_judged_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    for part, value in (("generation", 4.0), ("conversion", 1.0)):
        module = types.ModuleType(f"geomano_hpc.bench.data.{part}")
        module.measure = lambda quick, value=value: [  # type: ignore[attr-defined]
            Measurement("speed", value, "x", "one to another", at_least=3),
            Measurement("memory", value, "MiB", "peak", at_most=2),
        ]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    lines = measurement_table(bench_data(["generation", "conversion"], quick=True, out=None))
    assert [re.findall(r"\bmet\b|\bmissed\b", line) for line in lines[1:]] == [["met"], ["missed"], ["missed"], ["met"]]
    assert ">= 3" in lines[1]
    assert "<= 2" in lines[2]


def test_unknown_part_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "data", "--part", "reading"])
    assert "unknown part 'reading'; choose from generation, conversion, loading" in capsys.readouterr().err


def test_engine_with_wrong_numbers_gets_no_time() -> None:
    fields = [np.ones((5, 3, 3, 1), np.float32) for _ in range(2)]
    wrong = [torch.from_numpy(field.copy()) for field in fields]
    wrong[1][4, 0, 0] += 1e-6
    split = Split(STEADY, wrong[0], wrong[1])
    with pytest.raises(GeomanoError, match=r"gives wrong numbers in samples \[4\]: no speed is reported"):
        loading.check("direct", split, (fields[0], fields[1]))
