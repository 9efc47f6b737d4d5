"""A class of the user's as the model: found by name, its options typed by its constructor, wrong ones refused early."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from geomano_hpc.cli.app import main
from geomano_hpc.config import Recipe, load_recipe, recipe_from_mapping, to_yaml
from geomano_hpc.errors import ConfigError
from geomano_hpc.launch.study import load_study, plan, with_overrides
from geomano_hpc.models import build_model
from geomano_hpc.models.common.flops import count_by_part

NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, width: int = 4, *, sides: tuple[int, ...] = (3, 3),
                 tag: str = "x", scale=1.0, activation: type[nn.Module] = nn.GELU):
        super().__init__()
        if width < 2:
            raise ValueError("width is\\n2 or more")
        self.sides, self.tag, self.scale = sides, tag, scale
        self.layers = nn.Sequential(nn.Linear(in_channels, width), activation(), nn.Linear(width, out_channels))

    def forward(self, x):
        return self.scale * self.layers(x)

class Needy(Net):
    def __init__(self, in_channels, out_channels, width, grid):
        super().__init__(in_channels, out_channels, width)
        self.grid = grid

class Anything(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

class Looks(Net):
    def forward(self, x):
        return super().forward(x) if x.sum().item() == 0 else x

class ChannelsFirst(Net):
    def forward(self, x):
        return super().forward(x).movedim(-1, 1)

class Fails(Net):
    def forward(self, x):
        return self.layers(x.movedim(-1, 1))

class Pair(Net):
    def forward(self, x):
        return x, x

class Imaginary(Net):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.spectrum = nn.Parameter(torch.zeros(3, dtype=torch.complex64))

class Frozen(Net):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.mask = nn.Parameter(torch.zeros(3), requires_grad=False)

class Detached(Net):
    def forward(self, x):
        return super().forward(x).detach()

class Unused(Net):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.spare = nn.Parameter(torch.zeros(3))

class Tied(Net):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.again = self.layers[0]
        self.twice = nn.Linear(1, 4)
        self.twice.weight = self.layers[0].weight

class Unlike(nn.Module):
    def __init__(self, channels):
        super().__init__()

class NoNet:
    pass

def function():
    pass
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package in the current folder, which is not on the path yet."""
    package = tmp_path / "package_of_a_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "nets.py").write_text(NETS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("package_of_a_test", "package_of_a_test.nets"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)


def recipe(name: str, *options: str) -> Recipe:
    changes = [f"model.name=package_of_a_test.nets:{name}", *(f"model.options.{option}" for option in options)]
    return load_recipe("darcy_smoke", changes)


def test_options_have_the_types_of_the_constructor() -> None:
    read = recipe("Net", "width=6", "sides=[4, 5]", "tag=0011", "scale=0.5")
    options = {"width": 6, "sides": [4, 5], "tag": "0011", "scale": 0.5}
    assert read.model.model_dump() == {"name": "package_of_a_test.nets:Net", "options": options}
    model: Any = build_model(read.model, 3, 2)
    assert (model.sides, model.tag, model.scale) == ((4, 5), "0011", 0.5)
    assert model(torch.zeros(1, 5, 6, 3)).shape == (1, 5, 6, 2)


def test_resolved_recipe_reads_back_equal_and_defaults_stay_the_classs_own(tmp_path: Path) -> None:
    read = recipe("Net", "width=6")
    (tmp_path / "own.yaml").write_text(to_yaml(read))
    assert load_recipe("own.yaml") == read
    assert load_recipe("own.yaml", ["model.options.width=7"]).model.model_dump()["options"] == {"width": 7}


def test_grid_is_given_to_a_class_that_takes_it() -> None:
    assert build_model(recipe("Needy", "width=6").model, 3, 2, (5, 6)).grid == (5, 6)


def test_class_that_takes_anything_gets_numbers_where_they_look_like_numbers() -> None:
    said = ("width=6", "deep=true", "word=abc", "eps=1e-3", "switch=on")
    options = build_model(recipe("Anything", *said).model, 3, 2).options
    expected = {"width": 6, "deep": True, "word": "abc", "eps": 1e-3, "switch": "on"}
    assert options == {"in_channels": 3, "out_channels": 2, **expected}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Net", ["wdith=6"], "unknown key model.options.wdith of package_of_a_test.nets:Net; did you mean 'width'?"),
        ("Net", ["zzzzzz=6"], "zzzzzz of package_of_a_test.nets:Net; valid keys here: width, sides, tag, scale"),
        ("Net", ["width=four"], "model.options.width: Input should be a valid integer"),
        ("Net", ["sides=[a]"], "model.options.sides: Input should be a valid integer"),
        ("Net", ["activation=GELU"], "model.options.activation: Input should be a subclass of Module (found 'GELU')"),
        ("Net", ["in_channels=3"], "model.options.in_channels: the data tells it; leave it out"),
        ("Needy", [], "model.options.width is missing: package_of_a_test.nets:Needy has no default for it"),
        ("Nett", [], "nets.py) has no Nett; did you mean 'Net'?"),
        (
            "Unlike",
            [],
            "takes no in_channels, but (channels): write its constructor as __init__(self, in_channels, out_",
        ),
        ("NoNet", [], "package_of_a_test.nets:NoNet is a class, expected a class that is a torch.nn.Module"),
        ("function", [], "package_of_a_test.nets:function is a function, expected a class that is a torch.nn.Module"),
    ],
)
def test_wrong_class_or_option_is_one_line_when_the_recipe_is_read(name: str, options: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe(name, *options)
    assert str(caught.value).startswith("recipe darcy_smoke: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_keys_than_name_and_options_are_refused() -> None:
    content = {"name": "x", "data": {"store": "s"}, "model": {"name": "package_of_a_test.nets:Net", "width": 3}}
    with pytest.raises(ConfigError, match=r"unknown key model\.width; valid keys here: name, options"):
        recipe_from_mapping(content, "mine.yaml")


def test_missing_module_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe("darcy_smoke", ["model.name=packag.nets:Net"])
    assert "no module packag for packag.nets:Net; install it, or start geomano in the folder" in str(caught.value)
    assert f"(looked at the installed packages and in {tmp_path})" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Net", ["model.options.width=1"], "ValueError: width is 2 or more, when constructed with in_channels=1, out"),
        ("ChannelsFirst", [], "returns [2, 1, 22, 22] for [2, 22, 22, 1], expected [2, 22, 22, 1]: [batch, height,"),
        ("Fails", [], "RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        ("Pair", [], "returns tuple for [2, 22, 22, 1], expected [2, 22, 22, 1]"),
        ("Imaginary", [], "its parameters spectrum are complex"),
        ("Frozen", ["training.zero=1"], "parameters mask are not trained, and ZeRO parts only those that are: set"),
        ("Detached", [], "what it returns has no gradient; is it detached in forward?"),
        ("Tied", [], "its state cannot be saved: RuntimeError: Some tensors share memory"),
        (
            "Net",
            ["compute.compile=true"],
            "Net names no dense parts to compile: leave it off, or give the model a method",
        ),
        ("Net", ["compute.activation_checkpointing=true"], "Net has no layer stack: leave it off, or keep the model's"),
    ],
)
def test_what_one_sample_shows_is_said_before_anything_is_written_or_made(
    name: str, changes: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    words = [f"model.name=package_of_a_test.nets:{name}", *changes]
    with pytest.raises(SystemExit) as ended:
        main(["train", "darcy_smoke", *(word for change in words for word in ("--set", change))])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before  # no run folder, no data


def test_study_varies_its_options() -> None:
    study = with_overrides(
        load_study("darcy_smoke"),
        ["model.name=package_of_a_test.nets:Net", "model.options.tag=a"],
        ["model.options.width=4,8"],
        seeds=1,
        name="own",
    )
    small, large = plan(study)
    assert [run.recipe.model.model_dump()["options"] for run in (small, large)] == [
        {"tag": "a", "width": 4},
        {"tag": "a", "width": 8},
    ]
    assert re.fullmatch(r"width-4_seed-0_[0-9a-f]{8}", small.name)
    assert small.name[-8:] != large.name[-8:]


@pytest.mark.parametrize("name", ["Net", "Looks"])
def test_parameters_and_operations_are_counted_even_if_it_looks_at_values(name: str) -> None:
    (part,) = count_by_part(recipe(name, "width=6").model, 1, 1, (5, 7))
    assert (part.name, part.parameters, part.flops) == ("layers", 19, 2 * 35 * 12)


def test_try_out_leaves_a_good_model_alone() -> None:
    recipe("Net").model.try_out(1, 1, (5, 7), torch.device("cpu"), recipe("Net"))


def test_parameters_without_a_part_in_the_output_are_named_where_several_ranks_would_wait_for_them() -> None:
    content = recipe("Unused").model_dump()
    content["training"]["engine"] = "torch"
    chosen = Recipe.model_validate(content)
    chosen.model.try_out(1, 1, (5, 7), torch.device("cpu"), chosen)
    with pytest.raises(ConfigError, match="its parameters spare have no part in what it returns"):
        chosen.model.try_out(1, 1, (5, 7), torch.device("cpu"), chosen, world_size=2)
