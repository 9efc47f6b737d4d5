"""The benchmark of resolutions at a tiny size: real runs, evaluated on several grids of one raw file."""

import json
from pathlib import Path
from typing import Any

import pytest

from geomano_hpc.bench.record import measurement_table
from geomano_hpc.bench.resolution import Contender, bench_resolution, draw_resolutions, resolution_table
from geomano_hpc.errors import ConfigError

TINY = {
    "ours": Contender({"name": "geomano", "depth": 1, "embedding": 8, "dstate": 2}, 1.1, 1.2),
    "fno": Contender({"name": "fno", "depth": 1, "embedding": 4, "modes": 3}),
}


def changes(store: Path) -> dict[str, Any]:
    return {"data.store": str(store), "data.generate": None, "training.epochs": 1, "training.batch_size": 4}


@pytest.mark.slow
def test_models_are_trained_once_and_evaluated_on_every_grid(darcy_store: Path, tmp_path: Path) -> None:
    """The store has 9 x 9 of 17 x 17 points."""
    out = tmp_path / "out" / "resolution.json"
    arguments = (TINY, 9, [5, 17], 1, changes(darcy_store), tmp_path / "runs", 2)
    found = bench_resolution(*arguments, out)
    at = {(row["model"], row["points"]): row["mean"] for row in found["rows"]}
    assert sorted(at) == [(model, points) for model in ("fno", "ours", "ours, points counted") for points in (5, 9, 17)]
    result = next(iter((tmp_path / "runs" / "resolution_darcy_9").glob("model-geomano*/result.json")))
    assert at["ours", 9] == pytest.approx(json.loads(result.read_text())["rel_l2"], rel=1e-6)
    assert at["ours", 9] == at["ours, points counted", 9]
    assert at["ours", 17] != at["ours, points counted", 17]
    bars = {one["name"]: (one["value"], one["at_most"]) for one in found["measurements"]}
    assert bars["ours: 17 / 9"] == (at["ours", 17] / at["ours", 9], 1.1)
    assert bars["ours: 5 / 9"][1] == 1.2
    assert bars["fno: 17 / 9"][1] is None
    assert any("ours, points counted" in line for line in resolution_table(found))
    assert any("<= 1.1" in line for line in measurement_table(found))
    draw_resolutions(found, out.with_suffix(".png"))
    assert out.with_suffix(".png").stat().st_size > 10_000
    kept = [*(tmp_path / "runs").rglob("result.json"), tmp_path / "runs" / "resolution_darcy_9" / "resolutions.json"]
    written = [file.stat().st_mtime_ns for file in kept]
    assert bench_resolution(*arguments, None)["rows"] == found["rows"]
    assert [file.stat().st_mtime_ns for file in kept] == written


def test_a_grid_that_the_raw_points_do_not_give_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--trained-on 50: every n-th of 421 points gives other grids"):
        bench_resolution(TINY, 50, [43], 1, {}, tmp_path, 1, None)
    with pytest.raises(ConfigError, match="the benchmark chooses the models"):
        bench_resolution(TINY, 43, [43], 1, {"model.depth": 2}, tmp_path, 1, None)
