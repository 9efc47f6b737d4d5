"""One loss curve: whatever the number of ranks, the engine, the ZeRO stage and the parts of a batch."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from geomano_hpc.config import Recipe, load_recipe
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.run_folder import RunFolder
from tests.support.forked_ranks import Farm
from tests.support.training_runs import changed, curve, step_losses

GOLDEN = Path(__file__).parents[1] / "assets" / "losses"
STEPS = 20
# By default ZeRO 3 parts no small parameters and keeps some that are gathered: all of a tiny model's.
PARTED = {
    "zero_optimization": {
        "stage3_param_persistence_threshold": 0,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
        "stage3_prefetch_bucket_size": 0,
    }
}
ENGINES: dict[str, dict[str, object]] = {
    "zero0": {},
    "zero1": {"zero": 1},
    "zero2": {"zero": 2, "accumulate": 2},
    "zero3": {"zero": 3, "deepspeed": PARTED},
    "torch": {"engine": "torch"},
    "torch_in_parts": {"engine": "torch", "accumulate": 2},
}


def twenty_steps(recipe: Recipe) -> Recipe:
    """Ten samples in batches of three: the last batch has one sample, so one of two ranks has none, and some of the
    parts of a batch are empty. Of the three test samples one rank judges two."""
    content = changed(recipe, batch_size=3, epochs=5, log_every=1, evaluate_every=2, checkpoint_every=5).model_dump()
    content["data"]["test_samples"] = 3
    content["model"] |= {"depth": 2, "correction": "learnable"}
    return Recipe.model_validate(content)


@pytest.fixture(scope="module")
def flow_recipe(navier_stokes_store: Path) -> Recipe:
    """Ten calls of the model in every step."""
    keys = {"data.store": navier_stokes_store, "data.generate": "null", "model.depth": 1, "model.embedding": 8}
    changes = [f"{key}={value}" for key, value in keys.items()]
    return load_recipe("navier_stokes_smoke", [*changes, "training.figures_every=0"])


def assert_same_curve(one: RunFolder, other: RunFolder) -> None:
    expected, found = step_losses(one), step_losses(other)
    assert found.keys() == expected.keys()
    assert list(found.values()) == pytest.approx(list(expected.values()), rel=1e-5)
    judged = [error for _, error in curve(one) if error is not None]
    assert [error for _, error in curve(other) if error is not None] == pytest.approx(judged, rel=1e-5)
    ours, theirs = (load_file(folder.weights_file) for folder in (one, other))
    # All together: AdamW gives full steps to a weight whose gradient is nothing but rounding.
    whole = torch.cat([weight.flatten() for weight in ours.values()])
    difference = torch.cat([(theirs[name] - weight).flatten() for name, weight in ours.items()])
    assert difference.norm() < 1e-3 * whole.norm()


@pytest.mark.ranks
@pytest.mark.slow(30)
def test_two_ranks_follow_the_curve_of_one_with_every_engine(
    ranks: Farm, tiny_recipe: Recipe, flow_recipe: Recipe, tmp_path: Path
) -> None:
    steady, flow = twenty_steps(tiny_recipe), changed(flow_recipe, epochs=3, batch_size=2, log_every=1)
    recipes = {name: changed(steady, **keys) for name, keys in ENGINES.items()}
    recipes |= {f"flow_{name}": changed(flow, **ENGINES[name]) for name in ("zero3", "torch")}
    streamed = recipes["zero0"].model_dump()
    streamed["data"]["loading"] = "stream"
    recipes["zero0"] = Recipe.model_validate(streamed)
    two = {name: ranks.train(recipe, tmp_path / name) for name, recipe in recipes.items()}
    one, one_flow = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "one_flow")
    train(steady, one)
    train(flow, one_flow)
    assert list(step_losses(one)) == list(range(1, STEPS + 1))
    for name, folder in two.items():
        assert_same_curve(one_flow if name.startswith("flow") else one, folder)
    assert json.loads(two["zero0"].environment_file.read_text())["starts"][0]["world_size"] == 2


@pytest.mark.ranks
@pytest.mark.slow(20)
def test_chosen_weights_are_tested_alike_by_every_engine(
    ranks: Farm, tiny_recipe: Recipe, validated_store: Path, tmp_path: Path
) -> None:
    """The best epoch is not the last one: its weights go into the engine's own model, which may be parted."""
    content = changed(tiny_recipe, batch_size=3, epochs=8, lr=0.1, checkpoint_every=4).model_dump()
    content["data"] |= {"store": validated_store, "train_samples": 3}
    recipe = Recipe.model_validate(content)
    one = train(changed(recipe, engine="torch"), RunFolder(tmp_path / "one"))
    assert one["best_epoch"] < 8
    for name in ("zero0", "zero1", "zero3", "torch"):
        folder = ranks.train(changed(recipe, **ENGINES[name]), tmp_path / name)
        found = folder.result()
        assert found is not None
        assert (found["weights"], found["best_epoch"]) == ("best", one["best_epoch"])
        for key in ("rel_l2", "validation_rel_l2"):
            assert found[key] == pytest.approx(one[key], rel=1e-4)


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "zero0"])
@pytest.mark.slow
def test_one_rank_follows_the_same_curve_with_every_engine(name: str, tiny_recipe: Recipe, tmp_path: Path) -> None:
    """With so many channels that the CPU kernel computes the dense parts, too."""
    content = changed(twenty_steps(tiny_recipe), epochs=2).model_dump()
    content["model"]["embedding"] = 16
    recipe = Recipe.model_validate(content)
    one, other = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "other")
    train(recipe, one)
    train(changed(recipe, **ENGINES[name]), other)
    assert_same_curve(one, other)


def test_run_in_float16_leaves_nothing_behind_for_the_next_run_of_the_process(
    tiny_recipe: Recipe, tmp_path: Path
) -> None:
    half = changed(tiny_recipe, epochs=1).model_dump()
    half["compute"]["precision"] = "float16"
    half["model"]["scan_backend"] = "torch"  # float16 has no kernel for CPUs
    one, other = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "other")
    recipe = changed(tiny_recipe, epochs=2, zero=1, log_every=1)
    train(recipe, one)
    train(Recipe.model_validate(half), RunFolder(tmp_path / "half"))
    train(recipe, other)
    assert step_losses(other) == step_losses(one)


def test_losses_are_those_of_the_repository(tiny_recipe: Recipe, flow_recipe: Recipe, tmp_path: Path) -> None:
    """A change that must not alter numbers leaves these alone; one that must, renews them with GEOMANO_RENEW_LOSSES=1.

    Another processor sums in another order, and the differences grow from step to step: 1e-4 after 20 steps.
    """
    found = {}
    for name, recipe in (("darcy", twenty_steps(tiny_recipe)), ("navier_stokes", changed(flow_recipe, log_every=1))):
        folder = RunFolder(tmp_path / name)
        train(changed(recipe, epochs=5), folder)
        found[name] = {"steps": list(step_losses(folder).values()), "test_rel_l2": curve(folder)[-1][1]}
    file = GOLDEN / "tiny_runs.json"
    if os.environ.get("GEOMANO_RENEW_LOSSES"):
        file.write_text(json.dumps(found, indent=2) + "\n")
    for name, expected in json.loads(file.read_text()).items():
        assert found[name]["steps"] == pytest.approx(expected["steps"], rel=1e-4)
        assert found[name]["test_rel_l2"] == pytest.approx(expected["test_rel_l2"], rel=1e-4)
