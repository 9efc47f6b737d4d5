import math
import sys
from pathlib import Path

import pytest
import torch

from geomano_hpc.config import LossConfig, Recipe, load_recipe
from geomano_hpc.errors import ConfigError, GeomanoError
from geomano_hpc.training.loop import train
from geomano_hpc.training.losses import (
    central_differences,
    gradient_loss,
    make_loss,
    mse,
    relative_h1,
    relative_l1,
    relative_l2,
)
from geomano_hpc.training.records.run_folder import RunFolder
from tests.support.training_runs import changed


def test_relative_l2_of_each_sample() -> None:
    target = torch.tensor([[3.0, 4.0], [1.0, 0.0]]).view(2, 1, 2, 1)
    prediction = torch.tensor([[3.0, 9.0], [1.0, 0.0]]).view(2, 1, 2, 1)
    assert relative_l2(prediction, target).tolist() == [1.0, 0.0]


def test_central_differences_of_a_plane_are_its_slopes() -> None:
    i, j = torch.meshgrid(torch.arange(5.0), torch.arange(6.0), indexing="ij")
    plane = (2 * i + 3 * j).view(1, 5, 6, 1)
    d_dx, d_dy = central_differences(plane)
    assert (d_dx[0, 1:-1] == 2).all()
    assert (d_dy[0, :, 1:-1] == 3).all()
    assert d_dx[0, 0, 0, 0] == (2 * 1) / 2  # zero outside the grid


def test_gradient_loss_ignores_the_border_of_the_prediction() -> None:
    target = torch.zeros(1, 6, 6, 1)
    target[:, 1:-1, 1:-1] = torch.randn(1, 4, 4, 1)
    prediction = target.clone()
    prediction[:, 0] = 100.0
    assert gradient_loss(prediction, target).item() == 0.0
    prediction[:, 2, 2] += 1.0
    assert gradient_loss(prediction, target).item() > 0.0


def test_gradient_loss_is_the_sum_of_two_relative_errors() -> None:
    target = torch.zeros(1, 5, 5, 1)
    target[0, 2, 2] = 1.0
    assert gradient_loss(2 * target, target).item() == pytest.approx(2.0)
    assert math.isclose(gradient_loss(0 * target, target).item(), 2.0)


def test_relative_l1_and_mse_of_each_sample() -> None:
    target = torch.tensor([[3.0, -1.0], [1.0, 0.0]]).view(2, 1, 2, 1)
    prediction = torch.tensor([[3.0, 1.0], [1.0, 0.0]]).view(2, 1, 2, 1)
    assert relative_l1(prediction, target).tolist() == [0.5, 0.0]
    assert mse(prediction, target).tolist() == [2.0, 0.0]


def test_relative_h1_weighs_a_wave_by_its_frequency() -> None:
    """On the unit square || sin(2 pi k x) ||_H1^2 is in proportion to 1 + (2 pi k)^2; a line of one row works too."""
    x = torch.arange(400) / 400
    slow, fast = ((2 * torch.pi * k * x).sin().view(1, 1, -1, 1) for k in (1, 5))
    found = relative_h1(slow + 0.1 * fast, slow)
    expected = 0.1 * math.sqrt((1 + (10 * math.pi) ** 2) / (1 + (2 * math.pi) ** 2))
    assert found.item() == pytest.approx(expected, rel=1e-2)
    assert relative_h1(2 * slow, slow).item() == pytest.approx(1.0)


OWN = """
def weighted(prediction, target, weight=1.0):
    return weight * (prediction - target).square().mean(dim=(1, 2, 3))

def of_the_batch(prediction, target):
    return (prediction - target).square().mean()

def raises(prediction, target):
    raise ValueError("no")

def detached(prediction, target):
    return (prediction - target).detach().square().mean(dim=(1, 2, 3))

def nan_with_a_gradient(prediction, target):
    loss = (prediction - target).square().mean(dim=(1, 2, 3))
    return loss + (float("nan") * loss).detach()
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_losses.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_losses", raising=False)


def with_loss(recipe: Recipe, **loss: object) -> Recipe:
    recipe = changed(recipe, engine="torch", epochs=1, figures_every=0)
    return Recipe.model_validate({**recipe.model_dump(), "loss": loss})


def test_run_minimises_the_loss_that_it_names_and_records_the_relative_error_too(
    own: None, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    lines = {}
    for name, options in (("mse", {}), ("own_losses:weighted", {"weight": 3.0}), ("relative_l2", {})):
        folder = RunFolder(tmp_path / name.replace(":", "_"))
        train(with_loss(tiny_recipe, name=name, options=options, gradient_weight=0.0), folder)
        (lines[name],) = folder.metrics()
    assert lines["own_losses:weighted"]["train_loss"] == pytest.approx(3 * lines["mse"]["train_loss"], rel=1e-2)
    assert lines["mse"]["train_loss"] != pytest.approx(lines["mse"]["train_rel_l2"], rel=1e-2)
    assert lines["mse"]["train_rel_l2"] == pytest.approx(lines["relative_l2"]["train_rel_l2"], rel=0.2)


def test_loss_that_is_not_one_per_sample_is_refused(own: None, tiny_recipe: Recipe, tmp_path: Path) -> None:
    recipe = with_loss(tiny_recipe, name="own_losses:of_the_batch")
    with pytest.raises(
        ConfigError, match=r"loss.name: gave shape \(\) for a batch of 2; expected one loss for each sample"
    ):
        train(recipe, RunFolder(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"loss.name own_losses:raises: ValueError: no, when given samples of \[2, 9"):
        train(with_loss(tiny_recipe, name="own_losses:raises"), RunFolder(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"loss.name own_losses:detached: what it gives has no gradient"):
        train(with_loss(tiny_recipe, name="own_losses:detached"), RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_batch_that_has_moved_the_weights_is_not_called_left_out(
    own: None, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    """The loss is not a number, but its gradient is: the optimiser has taken its step."""
    recipe = changed(with_loss(tiny_recipe, name="own_losses:nan_with_a_gradient"), skip_nonfinite=9)
    with pytest.raises(GeomanoError, match=r"the loss is nan and the norm of its gradient [\d.]+ in epoch 1, step 1"):
        train(recipe, RunFolder(tmp_path / "run"))


def test_loss_that_is_not_there_is_refused(own: None) -> None:
    with pytest.raises(ConfigError, match=r"loss.name: is not known; did you mean 'relative_l2'\?; choose one of"):
        load_recipe("darcy_smoke", ["loss.name=relative_l"])
    with pytest.raises(ConfigError, match=r"loss.name own_losses:weighted: .* unexpected keyword argument 'power'"):
        make_loss(LossConfig(name="own_losses:weighted", options={"power": 2}))
