"""Recipes, studies and cluster profiles are found and read alike."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from geomano_hpc.config import load_recipe
from geomano_hpc.config.yaml_text import read_mapping
from geomano_hpc.errors import ConfigError
from geomano_hpc.launch import load_study
from geomano_hpc.slurm import load_profile

LOADERS = [
    pytest.param(load_recipe, "darcy_smok", "darcy_smoke", id="recipe"),
    pytest.param(load_study, "darcy_man", "darcy_main", id="study"),
    pytest.param(load_profile, "a10", "a100", id="profile"),
]


@pytest.fixture(autouse=True)
def no_files_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x\nrecipe: darcy\nname: y\n", "not valid YAML: the key name stands twice (line 3)"),
        ("environment: {A: 1, A: 2}\n", "not valid YAML: the key A stands twice (line 1)"),
        ("- gpu\n", "expected a mapping of keys, found list"),
        ("darcy\n", "expected a mapping of keys, found str"),
        ("", "expected a mapping of keys, found NoneType"),
        ("a: [", "not valid YAML: "),
        ("name: 2020-13-45\n", "not valid YAML: month must be in 1..12"),
        ("a: !!python/object/apply:os.getcwd []\n", "not valid YAML: could not determine a constructor"),
    ],
)
@pytest.mark.parametrize(("load", "_typo", "_meant"), LOADERS)
def test_file_that_is_no_mapping_of_single_keys_is_refused_in_one_line(
    load: Callable[[str], Any], _typo: str, _meant: str, text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(str(file))
    assert str(caught.value).startswith(f"{file}: {message}")
    assert "\n" not in str(caught.value)


def test_merges_are_no_doubled_keys() -> None:
    text = "a: &a {x: 1}\nset: {m: &m {<<: *a, x: 2}}\nname: {<<: *m}\nagain: {<<: *m, x: 3}\n"
    merged = {"a": {"x": 1}, "set": {"m": {"x": 2}}, "name": {"x": 2}, "again": {"x": 3}}
    assert read_mapping(text, "mine.yaml") == merged
    with pytest.raises(ConfigError, match=r"^mine.yaml: not valid YAML: the key x stands twice \(line 3\)$"):
        read_mapping("a: &a {x: 1}\nb: [*a, 1, {<<: *a, y: 2,\n  x: 2, x: 3}]\n", "mine.yaml")
    own: list[object] = read_mapping("a: &a [*a]\n", "mine.yaml")["a"]
    assert own[0] is own


@pytest.mark.parametrize(("load", "typo", "meant"), LOADERS)
def test_unknown_name_suggests_the_closest_and_lists_the_known(
    load: Callable[[str], Any], typo: str, meant: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(typo)
    assert f" or file {typo!r}; did you mean {meant!r}?; known: " in str(caught.value)
    assert "one of your own is a YAML file" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("load", "_typo", "meant"), LOADERS)
def test_file_in_this_folder_does_not_stand_in_for_a_shipped_name(
    load: Callable[[str], Any], _typo: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(meant).write_text("a: [")
    load(meant)
    with pytest.raises(ConfigError, match="not valid YAML"):
        load(f"./{meant}")
