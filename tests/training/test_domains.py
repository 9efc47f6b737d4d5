"""A 1D problem through the whole chain: raw lines, store, training, another resolution."""

from pathlib import Path

import numpy as np
import torch

from geomano_hpc.config import Recipe
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.training.evaluate import load_trained
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.run_folder import RunFolder


def test_lines_are_converted_trained_on_and_judged_at_another_resolution(tiny_recipe: Recipe, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = rng.standard_normal((12, 33)).cumsum(axis=1)
    np.savez(tmp_path / "lines.npz", coeff=lines, sol=lines.cumsum(axis=1))
    store = tmp_path / "lines.zarr"
    convert([tmp_path / "lines.npz"], problem("darcy", train_samples=8, test_samples=4, stride=2), store)
    content = tiny_recipe.model_dump()
    content["data"]["store"], content["loss"]["gradient_weight"] = store, 0.0
    content["model"] = {"domain": "1d", "depth": 1, "embedding": 8, "dstate": 2}
    folder = RunFolder(tmp_path / "run")
    train(Recipe.model_validate(content), folder)
    losses = [line["train_loss"] for line in folder.metrics()]
    assert losses[-1] < losses[0]
    for resolution, points in ((None, 17), (9, 9), (33, 33)):
        model, task = load_trained(folder, resolution=resolution)
        assert task.predict(model, torch.arange(4), torch.device("cpu")).shape == (4, 1, points, 1)
