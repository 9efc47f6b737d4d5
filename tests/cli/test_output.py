"""What scripts read: the objects of --json as they are documented, nothing else on stdout, and --quiet."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from geomano_hpc.cli.app import main
from geomano_hpc.cli.output import print_json
from geomano_hpc.config import Recipe, to_yaml
from geomano_hpc.progress import is_quiet

DOCUMENT = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
FREE = ("packages", "versions", "generation")  # what is in these depends on what is installed, and on the problem


def documented(command: str) -> Any:
    """The example under the command's heading."""
    section = DOCUMENT.split(f"### geomano {command} --json\n")[1]
    return json.loads(section.split("```json\n")[1].split("```")[0])


def assert_same_keys(printed: Any, example: Any, where: str) -> None:
    if isinstance(example, dict) and isinstance(printed, dict):
        assert list(printed) == list(example), where
        for key in example:
            if key not in FREE:
                assert_same_keys(printed[key], example[key], f"{where}.{key}")
    elif isinstance(example, list) and isinstance(printed, list) and example and printed:
        assert_same_keys(printed[0], example[0], f"{where}[0]")
    elif example is not None and printed is not None:
        kinds = [float if type(value) is int else type(value) for value in (printed, example)]
        assert kinds[0] is kinds[1], where


def geomano(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def _trained(workplace: Path, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished run in the study `mine`, trained once for all tests of this file."""
    monkeypatch.chdir(workplace)
    if not Path("runs").exists():
        Path("tiny.yaml").write_text(to_yaml(tiny_recipe))
        np.save("a.npy", np.ones((9, 9)))
        changes = ("--set", "training.epochs=1", "--set", "training.engine=torch")
        assert geomano("train", "tiny.yaml", "-q", *changes, "--out", "runs/mine/run") == 0


@pytest.mark.usefixtures("_trained")
@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("status", ("mine",)),
        ("report", ("mine", "--no-figures")),
        ("eval", ("runs/mine/run",)),
        ("predict", ("runs/mine/run", "--input", "a.npy")),
        ("doctor", ()),
        ("data info", ("STORE",)),
    ],
)
def test_json_is_the_documented_object_and_nothing_else_is_on_stdout(
    command: str, arguments: tuple[str, ...], darcy_store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [str(darcy_store) if word == "STORE" else word for word in arguments]
    assert geomano(*command.split(), *words, "--json") == 0
    shown = capfd.readouterr().out
    content = json.loads(shown, parse_constant=pytest.fail)  # no NaN, no Infinity
    assert_same_keys(content, documented(command), command)
    if command == "eval":
        assert (content["samples"], content["grid"]) == (4, [9, 9])
        assert 0 < content["rel_l2"] < 10
    if command == "predict":
        assert np.load(content["output"]).shape == tuple(content["shape"]) == (9, 9)
    if command == "data info":
        assert not darcy_store.with_suffix(".png").exists()


@pytest.mark.usefixtures("_trained")
def test_watched_status_is_an_object_on_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert geomano("status", "mine", "--watch", "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()  # all have ended: one look
    assert json.loads(line)["counts"]["done"] == 1


@pytest.mark.usefixtures("_trained")
def test_errors_are_the_same_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert geomano("eval", "nowhere", "--json") == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: nowhere: not a run folder")
    assert geomano("report", "mine", "--json", "--format", "csv") == 2
    assert "choose one" in capsys.readouterr().err


def test_every_variable_of_the_program_is_documented() -> None:
    root = Path(__file__).parents[2]
    parts = ("geomano_hpc", "kernels", "launch", "slurm", "data_prep")
    texts = [file.read_text() for part in parts for file in (root / part).rglob("*.py")]
    found = {name for text in texts for name in re.findall(r"\bGEOMANO_[A-Z_]+\b", text)}
    assert "GEOMANO_QUIET" in found
    assert found == set(re.findall(r"\| `(GEOMANO_[A-Z_]+)", DOCUMENT))


def test_json_has_null_for_what_is_no_number_and_text_for_paths(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": Path("x/y"), "d": (1, None)})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "c": "x/y", "d": [1, None]}


@pytest.mark.parametrize(
    ("value", "on"), [("1", True), ("yes", True), ("0", False), ("false", False), ("No", False), ("", False)]
)
def test_variables_of_the_environment_switch_quiet_and_debug_on_and_off(
    value: str, on: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEOMANO_QUIET", value)
    monkeypatch.setenv("GEOMANO_DEBUG", value)
    assert geomano("data", "info", "nothing.zarr") == 1
    assert ("Traceback" in capsys.readouterr().err) is on
    assert is_quiet() is on


@pytest.mark.usefixtures("_trained")
@pytest.mark.parametrize("place", ["first", "last"])
def test_quiet_leaves_the_result_and_the_log_of_the_run(place: str, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["train", "tiny.yaml", "--set", "training.epochs=1", "--set", "training.engine=torch", "--out", place]
    words = ["-q", *words] if place == "first" else [*words, "--quiet"]
    assert geomano(*words) == 0
    shown = capfd.readouterr()
    assert re.fullmatch(rf"test rel-L2 \d\.\d+ after 1 epochs: {place}\n", shown.out)
    assert shown.err == ""
    assert "epoch 1/1" in Path(place, "logs", "train.log").read_text()
    assert geomano("eval", place) == 0  # the next command is not quiet
    assert capfd.readouterr().err != ""


@pytest.mark.usefixtures("_trained")
def test_quiet_report_does_not_name_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert geomano("report", "mine", "--no-figures", "-q") == 0
    shown = capsys.readouterr()
    assert "all variants" in shown.out
    assert shown.err == ""
