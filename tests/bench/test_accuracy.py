"""The benchmark of accuracy at a tiny size: real runs, a kill, a second start, unequal models."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from geomano_hpc.bench.accuracy import CONTESTS, Contest, accuracy_table, bench_accuracy
from geomano_hpc.bench.curves import curve_of, draw_curves, mean_curve
from geomano_hpc.bench.rate_views import draw_rates
from geomano_hpc.bench.record import measurement_table
from geomano_hpc.config import load_recipe
from geomano_hpc.errors import ConfigError
from geomano_hpc.models import build_model, count_parameters
from geomano_hpc.training.records.run_folder import RunFolder, run_folders
from tests.support.training_runs import starts
from tests.support.waiting import wait_until

OURS = {"name": "geomano", "depth": 1, "embedding": 8, "dstate": 2}
TINY = Contest(
    "bench_darcy",
    {"ours": OURS, "fno": {"name": "fno", "depth": 1, "embedding": 4, "modes": 3}},
    {("ours", "fno"): 0.7},
)
RATES = (1e-2, 1e30)  # the first is best, at the edge; the other one diverges

PROGRAM = """
import json, sys
from pathlib import Path
from geomano_hpc.bench.accuracy import Contest, bench_accuracy
contest = Contest("bench_darcy", {"ours": json.loads(sys.argv[1])}, {})
bench_accuracy({"darcy": contest}, 1, json.loads(sys.argv[2]), Path(sys.argv[3]), 1, None, (1e-2, 1e30))
"""


def changes(store: Path) -> dict[str, Any]:
    training = {"training.epochs": 2, "training.batch_size": 4, "training.figures_every": 0, "training.loggers": []}
    return {"data.store": str(store), "data.generate": None, **training}


@pytest.mark.slow(60)
def test_every_model_is_compared_at_the_rate_that_was_found_for_it(darcy_store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "accuracy.json"
    arguments = ({"darcy": TINY}, 1, changes(darcy_store), tmp_path / "runs", 2)
    found = bench_accuracy(*arguments, out, RATES)
    rows = {row["model"]: row for row in found["rows"]}
    assert list(rows) == ["ours", "fno"]
    for row in rows.values():
        assert [trial["lr"] for trial in row["rates"]] == [3e-3, 1e-2, 1e30]  # widened at the edge
        assert row["rates"][0]["error"] > row["rates"][1]["error"]
        assert (row["rates"][2]["error"], row["lr"]) == (None, 1e-2)
        assert "the loss is" in row["rates"][2]["why"]
    result = json.loads((Path(rows["fno"]["runs"][0]) / "result.json").read_text())
    assert (rows["fno"]["errors"], rows["fno"]["parameters"]) == ([result["rel_l2"]], result["parameters"])
    assert (result["test_samples"], result["weights"]) == (4, "last")
    assert found["measurements"][0]["value"] == rows["ours"]["mean"] / rows["fno"]["mean"]
    settings = found["settings"]["problems"]["darcy"]
    assert settings["models"]["fno"]["modes"] == 3
    assert (settings["rates"]["train_samples"], settings["rates"]["held_out_samples"]) == (8, 2)

    searched = run_folders(tmp_path / "runs" / "accuracy_darcy_rates")
    assert len(searched) == 6
    assert {str(run.recipe().data.store) for run in searched} == {settings["rates"]["store"]}  # without the test split
    kept = {file: file.stat().st_mtime_ns for run in searched for file in (run.environment_file, run.metrics_file)}
    kept |= {file: file.stat().st_mtime_ns for file in (tmp_path / "runs").rglob("result.json")}
    again = bench_accuracy(*arguments, None, RATES)
    written = json.loads(out.read_text())
    assert (again["rows"], again["measurements"]) == (written["rows"], written["measurements"])
    assert {file: file.stat().st_mtime_ns for file in kept if file.exists()} == kept  # nor what diverged

    table = accuracy_table(again)
    assert table[0] == "darcy: rel-L2 on 2 of 10 training samples, held out, by rate (* chosen)"
    assert table[3].endswith("diverged")
    assert f"*{rows['ours']['rates'][1]['error']:.5f}" in table[3]
    assert "darcy: 2 epochs, batch 4" in table
    assert any("ours / fno" in line and "<= 0.7" in line for line in measurement_table(again))
    draw_rates(again, out.with_suffix(".png"))
    assert out.with_suffix(".png").stat().st_size > 10_000
    draw_curves(again, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000


@pytest.mark.slow(60)
def test_benchmark_that_was_killed_in_its_search_goes_on_there(darcy_store: Path, tmp_path: Path) -> None:
    runs, searched = tmp_path / "runs", tmp_path / "runs" / "accuracy_darcy_rates"
    words = [json.dumps(OURS), json.dumps(changes(darcy_store)), str(runs)]
    killed = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: bool(list(searched.glob("*/result.json"))) or killed.poll() is not None)
    os.killpg(killed.pid, signal.SIGKILL)
    _, said = killed.communicate()
    assert killed.returncode == -signal.SIGKILL, said
    assert not (runs / "accuracy_darcy").exists()
    (first,) = (RunFolder(file.parent) for file in searched.glob("*/result.json"))
    wait_until(lambda: not any(run.is_held for run in run_folders(searched)))  # what it was at has ended, too

    found = bench_accuracy(
        {"darcy": Contest("bench_darcy", {"ours": OURS}, {})}, 1, changes(darcy_store), runs, 2, None, RATES
    )
    assert found["rows"][0]["lr"] == 1e-2
    assert len(run_folders(searched)) == 3
    assert len(starts(first)) == 1


@pytest.mark.slow
def test_rate_that_is_set_for_all_models_is_not_searched(darcy_store: Path, tmp_path: Path) -> None:
    one = Contest("bench_darcy", {"ours": OURS}, {})
    given = {**changes(darcy_store), "training.lr": 5e-4}
    found = bench_accuracy({"darcy": one}, 2, given, tmp_path / "runs", 2, None)
    assert (found["rows"][0]["lr"], found["rows"][0]["rates"]) == (5e-4, [])
    assert len(set(found["rows"][0]["errors"])) == 2
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["accuracy_darcy"]
    assert accuracy_table(found)[0] == "darcy: 2 epochs, batch 4"


def test_unequal_models_are_not_compared(darcy_store: Path, tmp_path: Path) -> None:
    models = {**TINY.models, "fno": {"name": "fno", "depth": 1, "embedding": 8, "modes": 3}}
    with pytest.raises(ConfigError, match=r"darcy: parameter counts differ by more than 20 % \(ours 1,001, fno"):
        bench_accuracy({"darcy": Contest("bench_darcy", models, {})}, 1, changes(darcy_store), tmp_path, 1, None)
    assert not list(tmp_path.iterdir())


def test_some_models_keep_their_order_and_the_bars_between_them() -> None:
    some = CONTESTS["darcy"].only(["fno", "geomano best"])
    assert list(some.models) == ["geomano best", "fno"]
    assert some.bars == {("geomano best", "fno"): 0.6}
    with pytest.raises(ConfigError, match="unknown model 'fon' of bench_darcy; choose from geomano, "):
        CONTESTS["darcy"].only(["fon"])


@pytest.mark.slow
def test_contest_of_one_rate_searches_nothing_and_its_curves_are_means_over_seeds(
    darcy_store: Path, tmp_path: Path
) -> None:
    one = Contest("bench_darcy_converged", {"ours": OURS}, {}, searched=False)
    given = {**changes(darcy_store), "training.evaluate_every": 1}
    (row,) = bench_accuracy({"darcy_converged": one}, 2, given, tmp_path / "runs", 2, None)["rows"]
    assert (row["lr"], row["rates"]) == (load_recipe("bench_darcy_converged").training.lr, [])
    first, second = curves = [curve_of(RunFolder(Path(run))) for run in row["runs"]]
    mean = mean_curve(curves)
    assert mean.epochs == first.epochs == [1, 2]
    assert mean.errors == pytest.approx([(a + b) / 2 for a, b in zip(first.errors, second.errors, strict=True)])
    assert mean.errors[-1] == pytest.approx(row["mean"])
    assert 0 < mean.seconds[0] < mean.seconds[1]


@pytest.mark.parametrize(("problem", "channels"), [("darcy", 1), ("navier_stokes", 10), ("darcy_converged", 1)])
def test_models_of_the_benchmark_have_equal_size_and_the_recipe_is_ours(problem: str, channels: int) -> None:
    contest = CONTESTS[problem]
    sizes = []
    for model in contest.models.values():
        recipe = load_recipe(contest.recipe, [f"model={json.dumps(model)}"])
        sizes.append(count_parameters(build_model(recipe.model, channels, 1)))
    assert max(sizes) <= 1.2 * min(sizes)
    assert recipe.data.generate is not None
    ours = load_recipe(contest.recipe, [f"model={json.dumps(contest.models['geomano'])}"])
    assert load_recipe(contest.recipe).model == ours.model
    assert all(ours in contest.models and other in contest.models for ours, other in contest.bars)


def test_best_of_ours_is_the_shipped_recipe_at_the_size_of_the_benchmark() -> None:
    shipped = load_recipe("darcy_best").model.model_dump()
    model = json.dumps(CONTESTS["darcy"].models["geomano best"])
    measured = load_recipe("bench_darcy", [f"model={model}"]).model.model_dump()
    assert {key for key in shipped if shipped[key] != measured[key]} <= {"depth", "embedding", "dstate"}


def test_best_in_time_is_the_shipped_recipe_and_every_model_has_its_keys_of_rollouts() -> None:
    contest, shipped = CONTESTS["navier_stokes_best"], load_recipe("navier_stokes_best")
    made = {name: load_recipe(contest.recipe, [f"model={json.dumps(model)}"]) for name, model in contest.models.items()}
    ours, without = (made[name].model.model_dump() for name in ("geomano best", "without the scan"))
    assert {key for key in ours if shipped.model.model_dump()[key] != ours[key]} <= {"depth", "embedding", "dstate"}
    assert {key for key in ours if without[key] != ours[key]} == {"scan"}
    sizes = [count_parameters(build_model(recipe.model, 1, 1)) for recipe in made.values()]
    assert max(sizes) <= 1.2 * min(sizes)
    for recipe in made.values():
        assert recipe.rollout == shipped.rollout
        assert (recipe.training.optimizer_options, recipe.training.clip) == ({"betas": [0.9, 0.99]}, 1.0)
    assert shipped.training.optimizer_options == {"betas": [0.9, 0.99]}
    assert all(pair <= set(contest.models) for pair in map(set, contest.bars))
