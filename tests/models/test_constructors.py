"""Models as they are constructed in Python: keywords, their errors, and what a forward takes."""

import doctest
import inspect

import pytest
import torch

import geomano_hpc as gm
from geomano_hpc.config import model_names
from geomano_hpc.config.models import find_model
from geomano_hpc.errors import ConfigError
from geomano_hpc.models import GeoMaNO, build_model
from geomano_hpc.models.geomano import GeomanoConfig
from geomano_hpc.models.transolver import TransolverConfig

SMALL = {"depth": 1, "embedding": 8, "dstate": 2}


def test_keywords_are_the_keys_of_the_configuration() -> None:
    torch.manual_seed(0)
    by_keywords = gm.GeoMaNO(in_channels=3, out_channels=1, depth=2, embedding=8, dstate=2, correction="learnable")
    torch.manual_seed(0)
    config = GeomanoConfig(depth=2, embedding=8, dstate=2, correction="learnable")
    built = build_model(config, 3, 1)
    assert isinstance(built, GeoMaNO)
    x = torch.randn(2, 5, 7, 3)
    assert torch.equal(by_keywords(x), built(x))
    assert torch.equal(by_keywords(x), reloaded(by_keywords, GeoMaNO(3, 1, config=config))(x))


def reloaded(trained: torch.nn.Module, other: torch.nn.Module) -> torch.nn.Module:
    other.load_state_dict(trained.state_dict())
    return other


@pytest.mark.parametrize("name", model_names())
def test_every_model_is_constructed_alike_and_its_example_runs(name: str) -> None:
    model = find_model(name)
    parameters = inspect.signature(model).parameters
    assert list(parameters) == ["in_channels", "out_channels", "grid", "config", "options"]
    (example,) = doctest.DocTestFinder(recurse=False).find(model, name, globs={})
    assert example.examples
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert not said, "".join(said)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dept": 8}, "model geomano: unknown key dept; did you mean 'depth'?"),
        ({"zzzzzz": 8}, "model geomano: unknown key zzzzzz; valid keys here: name, depth, embedding"),
        ({"depth": "four"}, "model geomano: depth: Input should be a valid integer"),
        ({"depth": 0}, "model geomano: depth: Input should be greater than 0 (found 0)"),
        ({"patch": 2}, "model geomano: encoder pointwise does not go with patch 2"),
        ({"encoder": "global", "patch": 2}, "build the model with grid=(H, W)"),
        ({"config": GeomanoConfig(), "depth": 2}, "model geomano: give config, or keys such as depth, not both"),
        ({"config": TransolverConfig()}, "model geomano: config is a GeomanoConfig, not a TransolverConfig"),
        ({"in_channels": 0}, "GeoMaNO: in_channels is a number of 1 or more (found 0)"),
        ({"grid": 8}, "GeoMaNO: grid is (height, width), two numbers of 1 or more (found 8)"),
        ({"grid": (8, 0)}, "GeoMaNO: grid is (height, width), two numbers of 1 or more (found (8, 0))"),
        ({"out_channels": 1.5}, "GeoMaNO: out_channels is a number of 1 or more (found 1.5)"),
    ],
)
def test_wrong_keyword_is_one_line_with_the_closest_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GeoMaNO(**{"in_channels": 3, "out_channels": 1, **options})  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("shape", [(2, 3, 9, 9), (9, 9, 3), (9, 9), (2, 9, 9, 1)])
def test_input_of_another_shape_is_refused_with_the_expected_one(name: str, shape: tuple[int, ...]) -> None:
    model = find_model(name)(in_channels=3, out_channels=1)
    with pytest.raises(ConfigError) as caught:
        model(torch.zeros(shape))
    expected = f"{type(model).__name__} takes [batch, height, width, 3], channels last; found {list(shape)}"
    assert str(caught.value) == expected


def test_channels_that_are_missing_or_misspelt_are_said_alike() -> None:
    with pytest.raises(ConfigError, match=r"^GeoMaNO: unknown key in_channel; did you mean 'in_channels'"):
        GeoMaNO(in_channel=3, out_channels=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"^GeoMaNO: missing a required argument: 'out_channels'"):
        GeoMaNO(3)  # type: ignore[call-arg]
