"""Models by name: those of the package, of installed packages, one more file; and a recipe as a record, without any."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import geomano_hpc.models
from geomano_hpc.config import Recipe, RecordedModel, load_recipe, model_names, models, recipe_from_mapping, to_yaml
from geomano_hpc.errors import ConfigError
from geomano_hpc.models import build_model
from geomano_hpc.models.common.flops import count_by_part
from geomano_hpc.training.evaluate import load_trained
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.run_folder import RunFolder

ROOT = Path(__file__).parents[2]


def test_names_are_those_of_the_files_and_cost_no_torch() -> None:
    program = (
        "import sys; from geomano_hpc.config import model_names\n"
        "print(model_names(), [name for name in ('torch', 'geomano_hpc.models') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    files = sorted(file.stem for file in (ROOT / "geomano_hpc" / "models").glob("[!_]*.py"))
    assert {"fno", "geomano", "transolver", "uno"} <= set(files)
    assert done.stdout.strip() == f"{files} []"


@pytest.mark.parametrize("name", model_names())
def test_every_name_has_its_configuration(name: str) -> None:
    assert load_recipe("darcy", [f"model.name={name}"]).model.name == name


def test_recorded_recipe_is_read_without_torch(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(load_recipe("darcy", ["model.depth=3"])))
    program = (
        "import sys, pathlib; from geomano_hpc.training.records.run_folder import RunFolder\n"
        "recipe = RunFolder(pathlib.Path(sys.argv[1])).recorded_recipe()\n"
        "print(recipe.model.depth, recipe.model.correction, recipe.training.epochs, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "3 0011 500 False"


def test_record_says_what_the_recipe_says(tmp_path: Path) -> None:
    recipe = load_recipe("navier_stokes", ["model.name=transolver", "model.slices=32"])
    (tmp_path / "config.yaml").write_text(to_yaml(recipe))
    recorded = RunFolder(tmp_path).recorded_recipe()
    assert isinstance(recorded.model, RecordedModel)
    assert recorded.model_dump() == recipe.model_dump()
    assert to_yaml(recorded) == to_yaml(recipe)


def test_record_of_a_model_that_is_not_installed_is_read_and_the_rest_stays_strict() -> None:
    content = {"name": "x", "data": {"store": "s"}, "model": {"name": "gone.nets:Net", "options": {"width": 3}}}
    assert recipe_from_mapping(content, "config.yaml", recorded=True).model.name == "gone.nets:Net"
    with pytest.raises(ConfigError, match=r"config.yaml: unknown key training\.epoch; did you mean 'epochs'"):
        recipe_from_mapping({**content, "training": {"epoch": 3}}, "config.yaml", recorded=True)


PLUGIN = """
from typing import Any, Literal
from torch import nn
from geomano_hpc.config import ModelConfig, register_model

class PointConfig(ModelConfig):
    name: Literal["pointwise_of_a_test"] = "pointwise_of_a_test"
    width: int = 4

class Pointwise(nn.Linear):
    Config = PointConfig

    def __init__(self, in_channels, out_channels, *, grid=None, config=None, **options: Any):
        self.config = PointConfig.chosen(config, options)
        super().__init__(in_channels, out_channels)

class Plain(nn.Linear):
    def __init__(self, in_channels, out_channels, width=4):
        super().__init__(in_channels, out_channels)
        self.width = width
"""
ENTRIES = """[geomano_hpc.models]
pointwise_of_a_test = plugin_of_a_test:Pointwise
plain_of_a_test = plugin_of_a_test:Plain
other_of_a_test = plugin_of_a_test:Pointwise
missing_of_a_test = no_such_plugin_of_a_test:Net
absent_of_a_test = plugin_of_a_test:Absent
fno = plugin_of_a_test:Plain
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package: its module and its dist-info, in a folder of the path."""
    info = tmp_path / "plugin_of_a_test-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-of-a-test\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "plugin_of_a_test.py").write_text(PLUGIN)
    monkeypatch.setattr(models, "_REGISTERED", dict(models._REGISTERED))
    monkeypatch.delitem(sys.modules, "plugin_of_a_test", raising=False)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("plugin")
def test_installed_packages_add_models_by_their_entry_points() -> None:
    assert {"geomano", "pointwise_of_a_test", "plain_of_a_test", "missing_of_a_test"} <= set(model_names())
    assert "plugin_of_a_test" not in sys.modules
    with_config = load_recipe("darcy", ["model.name=pointwise_of_a_test", "model.width=7"]).model
    assert with_config.model_dump() == {"name": "pointwise_of_a_test", "width": 7}
    assert build_model(with_config, 3, 2).config == with_config
    plain = load_recipe("darcy", ["model.name=plain_of_a_test", "model.options.width=7"]).model
    assert plain.model_dump() == {"name": "plain_of_a_test", "options": {"width": 7}}
    assert build_model(plain, 3, 2).width == 7


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.name=pointwise_of_a_test", "model.widht=7"], "unknown key model.widht; did you mean 'width'?"),
        (
            ["model.name=plain_of_a_test", "model.options.widht=7"],
            "options.widht of plain_of_a_test; did you mean",
        ),
        (["model.name=pointwise_of_a_tes"], "'pointwise_of_a_tes' is not known; did you mean 'pointwise_of_a_test'?"),
        (
            ["model.name=missing_of_a_test"],
            "model.name: missing_of_a_test, which the package plugin-of-a-test registers as "
            "no_such_plugin_of_a_test:Net, cannot be imported: ModuleNotFoundError: No module named",
        ),
        (["model.name=absent_of_a_test"], "cannot be imported: AttributeError: module 'plugin_of_a_test' has no attr"),
        (
            ["model.name=other_of_a_test"],
            "other_of_a_test is registered for a model whose Config has the name ",
        ),
        (["model.name=fno"], "fno is the name of models of geomano_hpc and of the package plugin-of-a-test; uninstall"),
    ],
)
def test_broken_entry_point_is_an_error_only_when_it_is_asked_for(changes: list[str], message: str) -> None:
    assert load_recipe("darcy").model.name == "geomano"
    with pytest.raises(ConfigError) as caught:
        load_recipe("darcy", changes)
    assert str(caught.value).startswith("recipe darcy: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


FIFTH = """
from typing import Any, Literal
from torch import nn
from geomano_hpc.config import ModelConfig, register_model
from geomano_hpc.models.parts.grid_model import GridModel

class FifthConfig(ModelConfig):
    name: Literal["fifth_of_a_test"] = "fifth_of_a_test"
    embedding: int = 8

@register_model
class Fifth(GridModel):
    Config = FifthConfig

    def __init__(self, in_channels, out_channels, *, grid=None, config=None, **options: Any):
        super().__init__(in_channels, out_channels)
        config = FifthConfig.chosen(config, options)
        self.net = nn.Sequential(nn.Linear(in_channels, config.embedding), nn.Linear(config.embedding, out_channels))

    def forward(self, x):
        self.check_input(x)
        return self.net(x)
"""


def test_fifth_model_is_one_more_file(tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a second folder of the package, as if the file had been added to it: trained, counted and loaded again."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "fifth_of_a_test.py").write_text(FIFTH)
    monkeypatch.setattr(models, "_REGISTERED", dict(models._REGISTERED))
    monkeypatch.setattr(geomano_hpc.models, "__path__", [*geomano_hpc.models.__path__, str(tmp_path / "models")])
    monkeypatch.setattr(geomano_hpc.models.__spec__, "submodule_search_locations", geomano_hpc.models.__path__)
    assert "fifth_of_a_test" in model_names()
    content = {**tiny_recipe.model_dump(), "model": {"name": "fifth_of_a_test", "embedding": 4}}
    recipe = recipe_from_mapping(content, "mine.yaml")
    folder = RunFolder(tmp_path / "run")
    result = train(recipe, folder)
    assert result["parameters"] == sum(part.parameters for part in count_by_part(recipe.model, 1, 1, (9, 9))) == 13
    assert isinstance(folder.recipe().model, type(recipe.model))
    model, _ = load_trained(folder)
    with pytest.raises(ConfigError, match=r"Fifth takes \[batch, height, width, 1\]"):
        model(torch.zeros(3))
    monkeypatch.delitem(sys.modules, "geomano_hpc.models.fifth_of_a_test")
