"""The Markdown is true: its commands run as written, its links lead somewhere."""

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from scipy.io import savemat

import geomano_hpc
from geomano_hpc.cli.app import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
# Pages that the site makes from the scripts of the gallery; building it checks the links to them as well.
GALLERY = {ROOT / "docs" / "gallery" / f"{name.stem}.md" for name in [Path("index"), *ROOT.glob("docs/examples/*.py")]}


def command_blocks() -> list[str]:
    """The blocks of the README that are marked `sh`; `console` marks what needs a machine that is not here."""
    return re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[str]:
    lines = block.replace("\\\n", " ").splitlines()
    return [" ".join(line.split("  #")[0].split()) for line in lines if line.strip()]


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A user's folder with a file of their own in it."""
    rng = np.random.default_rng(0)
    fields = {"permeability": rng.uniform(1, 2, (120, 16, 16)), "pressure": rng.uniform(0, 1, (120, 16, 16))}
    savemat(tmp_path / "mine.mat", fields)
    return tmp_path


def run(command: str, workplace: Path) -> subprocess.CompletedProcess[str]:
    in_checkout = command.startswith("make")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MAKE")},  # not inside this one
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "VENV": sys.prefix,
        "DEMO_DIR": str(workplace / "demo"),
        "DEMO_SIZE": "demo_tiny",
    }
    shell = ["bash", "-c", command]
    folder = ROOT if in_checkout else workplace
    return subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("block", command_blocks(), ids=lambda block: " ".join(commands(block)[0].split()[:3]))
@pytest.mark.slow(100)
def test_readme_commands_run_as_written(block: str, workplace: Path) -> None:
    for command in commands(block):  # in one test: a command needs what those before it have made
        check(command, workplace)


def check(command: str, workplace: Path) -> None:
    if command in ("make check", "make test"):  # this very suite: only that it would run every check
        planned = run(command.replace("make", "make --dry-run"), workplace)
        assert all(tool in planned.stdout for tool in ("ruff check", "mypy", "lint-imports", "pytest"))
        return
    done = run(command, workplace)
    assert done.returncode == 0, done.stdout + done.stderr
    if command == "make demo":
        assert re.search(r"0\.\d+ ± 0\.\d+", done.stdout)
        report = workplace / "demo" / "runs" / "demo_tiny" / "report"
        texts = {f"report{kind}" for kind in (".md", ".tex", ".csv", "_variants.csv", "_tables.csv", ".html")}
        pictures = {f"{name}.{kind}" for name in ("loss_curves", "prediction") for kind in ("png", "pdf")}
        assert {file.name for file in report.iterdir()} == texts | pictures
        again = run(command, workplace)
        assert "already there, reused" in again.stdout
        assert "finished 0 of 5 runs (5 were finished before)" in again.stdout


@pytest.mark.slow(20)
@pytest.mark.parametrize("block", python_blocks(), ids=lambda block: block.split("\n")[0])
def test_readme_python_runs_as_written(block: str, workplace: Path) -> None:
    (workplace / "mine.py").write_text(block)
    done = run("python mine.py", workplace)
    assert done.returncode == 0, done.stderr
    assert re.search(r"test rel-L2 0\.\d+, of this sample 0\.\d+", done.stdout)


def test_readme_shows_the_two_commands_first() -> None:
    assert commands(command_blocks()[0]) == ["make demo", "make test"]
    assert "make demo" in "\n".join((ROOT / "README.md").read_text().splitlines()[:25])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_resolves(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists() or file in GALLERY, f"{document.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            slugs |= set(re.findall(r"^::: (\S+)$", file.read_text(), re.MULTILINE))  # names on the page of the API
            assert anchor in slugs, f"{document.name} links to {target}"


def test_every_extra_is_in_the_table_of_the_installation() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = [line for line in (ROOT / "docs/start/install.md").read_text().splitlines() if line.startswith("|")]
    assert set(re.findall(r'"\.\[([a-z-]+)\]"', "\n".join(rows))) == set(extras)


def fenced(document: Path, *languages: str) -> list[str]:
    """The blocks of these languages, without the indentation of a list or a tab around them."""
    pattern = rf"^( *)```(?:{'|'.join(languages)})\n(.*?)^ *```"
    found = re.findall(pattern, document.read_text(), re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for _, block in found]


def shown_commands() -> list[str]:
    blocks = [block for document in DOCUMENTS for block in fenced(document, "sh", "console")]
    lines = [line for block in blocks for line in commands(block)]
    return sorted({line[line.index("geomano ") :] for line in lines if re.search(r"(^|\s)geomano ", line)})


@pytest.mark.parametrize("command", shown_commands())
def test_commands_in_documents_have_the_options_that_they_show(command: str) -> None:
    words = shlex.split(command.split(" && ")[0], comments=True)[1:]
    options = {"-h", "--help", "-q", "--quiet", "--debug"}
    place: Any = typer.main.get_command(app)
    while words and not words[0].startswith("-") and (subcommands := getattr(place, "commands", None)):
        place = subcommands[words.pop(0)]
    options |= {name for parameter in place.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.split("=")[0] for word in words if re.match(r"-{1,2}[a-z]", word)} <= options


@pytest.mark.parametrize("document", [page for page in DOCUMENTS if fenced(page, "python")], ids=lambda path: path.name)
def test_python_in_documents_uses_names_of_the_package(document: Path) -> None:
    for block in fenced(document, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "gm":
                assert node.attr in geomano_hpc.__all__
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("geomano_hpc"):
                module = importlib.import_module(node.module or "")
                assert all(hasattr(module, name.name) for name in node.names)
