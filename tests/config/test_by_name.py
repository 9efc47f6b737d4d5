"""`package.module:name` in a recipe: found, or refused in one line that says what to do."""

import sys
from pathlib import Path

import pytest

from geomano_hpc.config.by_name import is_reference, resolve, resolve_callable
from geomano_hpc.errors import ConfigError

OWN = """
def double(x, times=2):
    return x * times

class Parts:
    inner = 7

number = 3
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_parts_of_a_test.py").write_text(OWN)
    (tmp_path / "broken_part_of_a_test.py").write_text("import no_such_package_of_a_test")
    (tmp_path / "failing_part_of_a_test.py").write_text("raise ValueError('two\\nlines')")
    monkeypatch.setattr(sys, "path", list(sys.path))  # put back after the test
    monkeypatch.chdir(tmp_path)


def test_module_of_the_folder_is_found_by_its_name() -> None:
    assert resolve("own_parts_of_a_test:double", "key")(4) == 8
    assert resolve("own_parts_of_a_test:Parts.inner", "key") == 7
    assert resolve("math:pi", "key") == pytest.approx(3.14159, rel=1e-5)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("own_parts_of_a_test", "is not of the form package.module:name"),
        ("no_such_package.nets:Net", "no module no_such_package for .*; install it, or start geomano in the folder"),
        ("own_parts_of_a_test.nets:Net", "no module own_parts_of_a_test.nets|is not a package"),
        ("own_parts_of_a_test:dubble", r"own_parts_of_a_test \(.*\.py\) has no dubble; did you mean 'double'\?"),
        ("broken_part_of_a_test:x", "cannot be imported: ModuleNotFoundError: No module named 'no_such_package_of_a_"),
        ("failing_part_of_a_test:x", "cannot be imported: ValueError: two lines"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(reference: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^training.optimizer: .*({words})") as refused:
        resolve(reference, "training.optimizer")
    assert "\n" not in str(refused.value)


def test_what_cannot_be_called_so_is_refused() -> None:
    assert resolve_callable("own_parts_of_a_test:double", "key", "x", 1, times=3)(1, times=3) == 3
    with pytest.raises(ConfigError, match=r"^key: .*:number is a int, which cannot be called with \(x\)"):
        resolve_callable("own_parts_of_a_test:number", "key", "(x)", 1)
    with pytest.raises(ConfigError, match=r"^key: .*:double cannot be called with \(x, often\): .*unexpected keyword"):
        resolve_callable("own_parts_of_a_test:double", "key", "(x, often)", 1, often=2)


def test_reference_is_told_from_a_name() -> None:
    assert is_reference("my_package.parts:Optimiser")
    assert not is_reference("adamw")
    assert not is_reference("C:\\parts")
