"""The benchmark of accuracy at a tiny size: real runs, a second start, unequal models."""

import json
from pathlib import Path
from typing import Any

import pytest

from geomano_hpc.bench.accuracy import CONTESTS, Contest, accuracy_table, bench_accuracy
from geomano_hpc.bench.record import measurement_table
from geomano_hpc.config import load_recipe
from geomano_hpc.errors import ConfigError
from geomano_hpc.models import build_model, count_parameters

TINY = Contest(
    "bench_darcy",
    {
        "ours": {"name": "geomano", "depth": 1, "embedding": 8, "dstate": 2},
        "fno": {"name": "fno", "depth": 1, "embedding": 4, "modes": 3},
    },
    {("ours", "fno"): 0.7},
    lr={"fno": 5e-4},
)


def changes(store: Path) -> dict[str, Any]:
    training = {"training.epochs": 1, "training.batch_size": 4}
    return {"data.store": str(store), "data.generate": None, **training}


@pytest.mark.slow
def test_benchmark_trains_compares_and_does_not_repeat_itself(darcy_store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "accuracy.json"
    arguments = ({"darcy": TINY}, 1, changes(darcy_store), tmp_path / "runs", 2)
    found = bench_accuracy(*arguments, out)
    rows = {row["model"]: row for row in found["rows"]}
    assert list(rows) == ["ours", "fno"]
    result = json.loads((Path(rows["fno"]["runs"][0]) / "result.json").read_text())
    assert rows["fno"]["errors"] == [result["rel_l2"]]
    assert rows["fno"]["parameters"] == result["parameters"]
    assert found["measurements"][0]["value"] == rows["ours"]["mean"] / rows["fno"]["mean"]
    assert found["settings"]["problems"]["darcy"]["models"]["fno"]["modes"] == 3
    assert (rows["ours"]["lr"], rows["fno"]["lr"]) == (3e-3, 5e-4)
    finished = {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("result.json")}
    assert len(finished) == 2
    again = bench_accuracy(*arguments, None)
    written = json.loads(out.read_text())
    assert (again["rows"], again["measurements"]) == (written["rows"], written["measurements"])
    assert {file: file.stat().st_mtime_ns for file in finished} == finished
    assert accuracy_table(again)[0] == "darcy: 1 epochs, batch 4"
    assert any("ours / fno" in line and "<= 0.7" in line for line in measurement_table(again))


def test_unequal_models_are_not_compared(darcy_store: Path, tmp_path: Path) -> None:
    models = {**TINY.models, "fno": {"name": "fno", "depth": 1, "embedding": 8, "modes": 3}}
    with pytest.raises(ConfigError, match=r"darcy: parameter counts differ by more than 20 % \(ours 1,001, fno"):
        bench_accuracy({"darcy": Contest("bench_darcy", models, {})}, 1, changes(darcy_store), tmp_path, 1, None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("problem", "channels"), [("darcy", 1), ("navier_stokes", 10)])
def test_models_of_the_benchmark_have_equal_size_and_the_recipe_is_ours(problem: str, channels: int) -> None:
    contest = CONTESTS[problem]
    sizes = []
    for model in contest.models.values():
        recipe = load_recipe(contest.recipe, [f"model={json.dumps(model)}"])
        sizes.append(count_parameters(build_model(recipe.model, channels, 1)))
    assert max(sizes) <= 1.2 * min(sizes)
    assert recipe.data.generate is not None
    assert (
        load_recipe(contest.recipe).model
        == load_recipe(contest.recipe, [f"model={json.dumps(contest.models['geomano'])}"]).model
    )
    assert set(contest.lr) <= set(contest.models)
    assert all(ours in contest.models and other in contest.models for ours, other in contest.bars)
