"""Training from Python does what the command does."""

from pathlib import Path

import pytest

import geomano_hpc as gm
from geomano_hpc.config import to_yaml
from geomano_hpc.training.records.run_folder import RunFolder


def test_the_result_is_that_of_the_folder_and_nothing_is_printed(
    tiny_recipe: gm.Recipe, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = gm.train(tiny_recipe, {"training.epochs": 2}, out=str(tmp_path / "run"))
    assert capfd.readouterr().out == ""
    assert result.folder == tmp_path / "run"
    record = RunFolder(result.folder).result()
    assert record is not None
    assert (result.rel_l2, result.epochs, result.parameters) == (record["rel_l2"], 2, record["parameters"])
    assert gm.load(result.folder).result == result
    weights = result.folder / "model.safetensors"
    written = weights.stat().st_mtime_ns
    assert gm.train(tiny_recipe, {"training.epochs": 2}, out=tmp_path / "run") == result
    assert weights.stat().st_mtime_ns == written  # not trained again


def test_a_recipe_is_a_name_a_file_or_an_object(tiny_recipe: gm.Recipe, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(to_yaml(tiny_recipe))
    assert gm.load_recipe(file) == gm.load_recipe(str(file)) == gm.load_recipe(tiny_recipe) == tiny_recipe
    assert gm.load_recipe(tiny_recipe, {"model.depth": 3}) == gm.load_recipe(str(file), ["model.depth=3"])
    assert gm.load_recipe(tiny_recipe, {"model.name": "transolver"}).model.name == "transolver"


def test_the_folder_is_named_as_the_command_names_it(
    tiny_recipe: gm.Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = gm.train(tiny_recipe, {"training.epochs": 1, "training.engine": "torch"})
    assert result.folder.parent == Path("runs/darcy_smoke")
    assert result.folder.name.startswith("seed-0_")


def test_what_is_wrong_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(gm.ConfigError, match=r"training\.epoch.*did you mean 'epochs'"):
        gm.train("darcy_smoke", {"training.epoch": 2}, out=tmp_path / "run")
    with pytest.raises(gm.ConfigError, match=r"darcy_smok.*did you mean 'darcy_smoke'"):
        gm.train("darcy_smok", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
