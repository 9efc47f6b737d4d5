"""The front door: what the package offers, when it loads what, and that its documentation and examples are true."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

import geomano_hpc as gm

ROOT = Path(__file__).parents[2]
SLOW = pytest.mark.slow
NAMES = sorted(set(gm.__all__) - {"__version__"})


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_import_loads_no_torch_and_takes_a_moment() -> None:
    heavy = ("torch", "numpy", "zarr", "deepspeed", "pydantic", "scipy", "mpi4py", "geomano_hpc.kernels")
    code = "import sys, time; t = time.perf_counter(); import geomano_hpc; print(time.perf_counter() - t, *sys.modules)"
    seconds, *modules = min((python(code).split() for _ in range(3)), key=lambda words: float(words[0]))
    assert float(seconds) < 0.3
    assert not set(heavy) & set(modules)


@pytest.mark.parametrize(
    "code",
    [
        "import geomano_hpc, torch",
        "import torch, geomano_hpc",
        "import geomano_hpc, importlib.util; importlib.util.find_spec('torch'); import torch",
        "import geomano_hpc.kernels, torch",  # the kernels ask for torch while they are imported
    ],
)
@SLOW
def test_operators_are_known_wherever_torch_and_the_package_are_imported(code: str) -> None:
    assert python(f"{code}; print(torch.ops.geomano_hpc.geo_scan.default)") == "geomano_hpc.geo_scan.default"


@SLOW
def test_torch_is_found_as_ever_behind_the_import() -> None:
    code = "import sys; before = list(sys.meta_path); import geomano_hpc, torch"
    assert python(f"{code}; print(sys.meta_path == before, vars(torch.__loader__).keys())") == (
        "True dict_keys(['name', 'path'])"
    )


def test_every_name_is_there_and_listed_for_completion() -> None:
    assert dir(gm) == sorted(gm.__all__)
    for name in gm.__all__:
        assert getattr(gm, name) is not None
    with pytest.raises(AttributeError, match="module 'geomano_hpc' has no attribute 'open_datset'"):
        gm.open_datset  # type: ignore[attr-defined]  # noqa: B018


def test_documentation_lists_the_surface_and_nothing_else() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    assert sorted(re.findall(r"^::: geomano_hpc\.(\w+)$", page, re.MULTILINE)) == NAMES


def examples_of(name: str) -> list[doctest.DocTest]:
    thing = getattr(gm, name)
    found = doctest.DocTestFinder(recurse=False).find(thing, name, globs={})
    for method in vars(thing) if isinstance(thing, type) else ():
        if not method.startswith("_") and callable(getattr(thing, method)):
            found += doctest.DocTestFinder(recurse=False).find(getattr(thing, method), f"{name}.{method}", globs={})
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW if name in ("Run", "train") else ()) for name in NAMES])
def test_docstrings_have_an_example_that_runs(name: str, at_home: Path) -> None:
    thing = getattr(gm, name)
    assert thing.__doc__
    if isinstance(thing, type) and issubclass(thing, Exception):
        return  # their examples are the errors that other tests meet
    examples = examples_of(name)
    assert examples, f"the docstring of {name} has no example"
    for example in examples:
        said: list[str] = []
        doctest.DocTestRunner(verbose=False).run(example, out=said.append)
        assert not said, "".join(said)
