"""Where the points of other data lie, in steps of the training's grid."""

from pathlib import Path
from typing import Any

import pytest
import torch

from geomano_hpc.config import Recipe
from geomano_hpc.data_prep.store_card import Axis
from geomano_hpc.errors import DataError
from geomano_hpc.models.geomano import GeoMaNO
from geomano_hpc.models.parts.sampling import Sampling
from geomano_hpc.training.evaluate import load_trained
from geomano_hpc.training.loop import train
from geomano_hpc.training.predict import load_predictor
from geomano_hpc.training.records.run_folder import RunFolder
from geomano_hpc.training.sampling import sampling_between
from tests.support.training_runs import mean_error


def pair(**changes: Any) -> tuple[Axis, Axis]:
    axis = {"points": 9, "start": 0.5, "spacing": 2.0, "boundary": "wall", "units": "m", **changes}
    return Axis("x", **axis), Axis("y", **axis)


def test_spacing_and_first_point_come_from_the_coordinates() -> None:
    found = sampling_between(pair(), pair(points=30, spacing=0.5, start=-0.5), "store")
    assert found == Sampling((0.25, 0.25), (-0.5, -0.5), (9, 9))


def test_without_coordinates_both_grids_cover_one_domain() -> None:
    """A periodic axis is parted into its points, any other one into its intervals."""
    trained, here = (pair(points=points, spacing=None, start=None) for points in (9, 17))
    assert sampling_between(trained, here, "store") == Sampling((0.5, 0.5), points=(9, 9))
    trained, here = (pair(points=points, spacing=None, boundary="periodic") for points in (8, 16))
    assert sampling_between(trained, here, "store") == Sampling((0.5, 0.5), (0, 0), (8, 8), (True, True))


def test_the_same_grid_is_exactly_itself() -> None:
    assert sampling_between(pair(spacing=0.1), pair(spacing=0.1), "store") == Sampling(points=(9, 9))
    assert sampling_between(pair(spacing=0.1), pair(spacing=0.30000000000000004), "store").spacing == (3.0, 3.0)


def test_other_units_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="store: axis x is in mm, and the model was trained on m"):
        sampling_between(pair(), pair(units="mm"), "store")
    with pytest.raises(DataError, match=r"100 apart, those of the training 2: more than 32 times as fine or as coarse"):
        sampling_between(pair(), pair(spacing=100.0), "store")


@pytest.fixture
def trained(tiny_recipe: Recipe, tmp_path: Path) -> RunFolder:
    """On 9 x 9 of 17 x 17 points."""
    folder = RunFolder(tmp_path / "run")
    train(tiny_recipe, folder)
    return folder


def test_evaluation_at_another_resolution_takes_its_spacing_by_itself(trained: RunFolder) -> None:
    errors = {}
    for resolution in (None, 17):
        model, task = load_trained(trained, resolution=resolution)
        assert isinstance(model, GeoMaNO)
        assert model.where.spacing == ((1.0, 1.0) if resolution is None else (0.5, 0.5))
        assert model.where.points == (9, 9)
        errors[resolution] = mean_error(model, task, 4)
    assert isinstance(model, GeoMaNO)
    model.counts_points = True
    assert mean_error(model, task, 4) != errors[17]


def test_a_run_that_counts_points_does_so_at_every_resolution(tiny_recipe: Recipe, tmp_path: Path) -> None:
    content = tiny_recipe.model_dump()
    content["model"]["discretisation"] = "pixel"
    folder = RunFolder(tmp_path / "run")
    train(Recipe.model_validate(content), folder)
    model, _ = load_trained(folder, resolution=17)
    assert isinstance(model, GeoMaNO)
    assert model.sampling.spacing == (0.5, 0.5)
    assert model.where == Sampling()


def test_a_prediction_takes_the_grid_of_its_fields(trained: RunFolder) -> None:
    """As an evaluation of the same fields does."""
    model, task = load_trained(trained, resolution=17)
    fields, _ = task.split.batch(torch.arange(2)).to(torch.device("cpu"))
    predictor = load_predictor(trained.recipe(), trained.weights_file, "cpu")
    expected = task.predict(model, torch.arange(2), torch.device("cpu"))
    torch.testing.assert_close(predictor.predict(fields), expected)
    coarse = fields[:, ::2, ::2]
    predictor.predict(coarse)
    assert isinstance(predictor.model, GeoMaNO)
    assert predictor.model.where.spacing == (1.0, 1.0)


def test_weights_know_the_axes_of_their_training(trained: RunFolder) -> None:
    predictor = load_predictor(None, trained.weights_file, "cpu")
    axes = predictor.known.axes
    assert [axis.points for axis in axes] == [9, 9]
    assert [axis.boundary for axis in axes] == ["wall", "wall"]
