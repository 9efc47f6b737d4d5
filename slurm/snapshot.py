"""The code that a job runs is copied when the job is submitted: editing the checkout does not change what is queued."""

import hashlib
import importlib.util
import shutil
from pathlib import Path

from geomano_hpc.atomic import new_folder, write_text
from geomano_hpc.errors import GeomanoError
from geomano_hpc.training.records.revision import REVISION_FILE, git_revision

# Folders of their own in a checkout, inside of geomano_hpc in an installed package.
_PARTS = ("data_prep", "kernels", "launch", "slurm")
_LEFT_OUT = ("__pycache__",)


def snapshot_path(folder: Path) -> Path:
    """Where the snapshot of today's code is or would be: the same code has the same name."""
    return folder / f"code_{_digest(_files())}"


def snapshot_code(folder: Path) -> Path:
    """Copy the package that this process runs into `folder`, once for each state of it.

    The snapshot goes first on PYTHONPATH; it comes before an editable or any other install.
    """
    files = _files()
    path = folder / f"code_{_digest(files)}"
    if path.is_dir():
        return path
    try:
        with new_folder(path) as temporary:
            for name, source in files.items():
                target = temporary / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
            write_text(temporary / REVISION_FILE, f"{git_revision() or ''}\n")
    except GeomanoError:
        if not path.is_dir():  # else another launch of the same code was faster
            raise
    return path


def _files() -> dict[str, Path]:
    """Every file of the package by its path from where geomano_hpc is imported."""
    found: dict[str, Path] = {}
    for module in ("geomano_hpc", *(f"geomano_hpc.{part}" for part in _PARTS)):
        found_at = importlib.util.find_spec(module)  # found, not imported: kernels would load torch
        assert found_at is not None
        assert found_at.origin is not None
        root = Path(found_at.origin).parent
        for file in sorted(root.rglob("*")):
            if file.is_file() and not set(_LEFT_OUT) & set(file.relative_to(root).parts):
                found[str(Path(*module.split(".")) / file.relative_to(root))] = file
    return found


def _digest(files: dict[str, Path]) -> str:
    content = hashlib.sha256()
    for name, file in sorted(files.items()):
        content.update(f"{name}\0{file.stat().st_size}\0".encode())
        content.update(file.read_bytes())
    return content.hexdigest()[:12]
