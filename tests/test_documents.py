"""The Markdown is true: its commands run as written, its links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def command_blocks() -> list[str]:
    """The blocks of the README that are marked `sh`; `console` marks what needs a machine that is not here."""
    return re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


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
        # Neither inside this make nor measured for coverage, which would double the time.
        **{name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "COV"))},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "VENV": sys.prefix,
        "DEMO_DIR": str(workplace / "demo"),
        "DEMO_SIZE": "demo_tiny",
    }
    shell = ["bash", "-c", command]
    folder = ROOT if in_checkout else workplace
    return subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("block", command_blocks(), ids=lambda block: " ".join(commands(block)[0].split()[:3]))
def test_readme_commands_run_as_written(block: str, workplace: Path) -> None:
    for command in commands(block):  # in one test: a command needs what those before it have made
        check(command, workplace)


def check(command: str, workplace: Path) -> None:
    if command == "make test":  # this very suite: only that it would run every check
        planned = run("make --dry-run test", workplace)
        assert all(tool in planned.stdout for tool in ("ruff check", "mypy", "lint-imports", "pytest"))
        return
    done = run(command, workplace)
    assert done.returncode == 0, done.stdout + done.stderr
    if command == "make demo":
        assert re.search(r"0\.\d+ ± 0\.\d+", done.stdout)
        report = workplace / "demo" / "runs" / "demo_tiny" / "report"
        texts = {f"report.{kind}" for kind in ("md", "tex", "csv", "html")}
        pictures = {f"{name}.{kind}" for name in ("loss_curves", "prediction") for kind in ("png", "pdf")}
        assert {file.name for file in report.iterdir()} == texts | pictures
        again = run(command, workplace)
        assert "already there, reused" in again.stdout
        assert "finished 0 of 5 runs (5 were finished before)" in again.stdout


def test_readme_shows_the_two_commands_first() -> None:
    assert commands(command_blocks()[0]) == ["make demo", "make test"]
    assert "make demo" in "\n".join((ROOT / "README.md").read_text().splitlines()[:25])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_resolves(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), f"{document.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{document.name} links to {target}"
