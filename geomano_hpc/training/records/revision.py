"""Which revision of the code runs: told by git in a checkout, by a file in a copy of it."""

import subprocess
from pathlib import Path
from shutil import which

import geomano_hpc

# Beside the package in a copy that was made for queued jobs.
REVISION_FILE = "git_revision.txt"


def git_revision() -> str | None:
    """The revision of the checkout that this code runs or comes from, `-dirty` if it was edited; None for a wheel."""
    git = which("git")
    folder = Path(geomano_hpc.__file__).parent
    copied = folder.parent / REVISION_FILE
    if copied.is_file():
        return copied.read_text(encoding="utf-8").strip() or None
    if git is None or not (folder.parent / ".git").exists():
        return None
    command = [git, "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
