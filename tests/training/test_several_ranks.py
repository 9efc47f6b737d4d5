"""Two real processes, started by torchrun."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from geomano_hpc.config import Recipe, to_yaml
from geomano_hpc.training.loop import train
from geomano_hpc.training.run_folder import RunFolder
from tests.training_runs import changed, curve


def two_ranks(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "geomano_hpc", "train", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_two_ranks_follow_the_curve_of_one(tiny_recipe: Recipe, tmp_path: Path) -> None:
    """Ten samples in batches of three: the last batch has one sample, so one of the two ranks has none. Of the three
    test samples one rank judges two. Two ranks stream their samples, one has them in memory."""
    content = changed(tiny_recipe, batch_size=3).model_dump()
    content["data"]["test_samples"] = 3
    recipe = Recipe.model_validate(content)
    content["data"]["loading"] = "stream"
    (tmp_path / "recipe.yaml").write_text(to_yaml(Recipe.model_validate(content)))
    done = two_ranks(tmp_path, "recipe.yaml", "--out", "two")
    assert done.returncode == 0, done.stderr
    one, two = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "two")
    train(recipe, one)
    for expected, found in zip(curve(one), curve(two), strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
    for name, weight in load_file(one.weights_file).items():
        torch.testing.assert_close(load_file(two.weights_file)[name], weight, rtol=1e-3, atol=1e-5)
    assert json.loads(two.environment_file.read_text())["starts"][0]["world_size"] == 2


def test_loss_that_is_not_finite_on_one_rank_is_reported_with_its_samples(tiny_recipe: Recipe, tmp_path: Path) -> None:
    content = tiny_recipe.model_dump(mode="json")
    content["training"]["lr"] = 1e30  # the second step has no finite loss
    (tmp_path / "recipe.yaml").write_text(to_yaml(Recipe.model_validate(content)))
    done = two_ranks(tmp_path, "recipe.yaml", "--out", "run")
    assert done.returncode == 1
    assert len(re.findall(r"error: run: the loss is \S+ in epoch 1, samples \[\d", done.stderr)) == 1
    assert "the loss is" in (tmp_path / "run" / "logs" / "train.log").read_text()


def test_failed_start_ends_both_ranks_with_one_error(tmp_path: Path) -> None:
    done = two_ranks(tmp_path, "darcy")
    assert done.returncode == 1
    assert done.stderr.count("error: data/darcy.zarr: no such store") == 1


def test_missing_data_is_made_once_for_both_ranks_and_a_finished_run_is_reported_once(tmp_path: Path) -> None:
    sizes = ("data.generate.train_samples=4", "data.generate.test_samples=2", "data.generate.grid=12")
    small = ("model.depth=1", "model.embedding=8", "training.epochs=1", *sizes)
    arguments = ("darcy_smoke", "--out", "run", *(word for size in small for word in ("--set", size)))
    for _ in range(2):
        done = two_ranks(tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("test rel-L2") == 1
