import subprocess
import sys
from pathlib import Path

import pytest

from geomano_hpc.slurm import snapshot_code, snapshot_path
from geomano_hpc.training.records.revision import git_revision

EVERY_PART = "import geomano_hpc.launch.job, geomano_hpc.kernels, geomano_hpc.data_prep.conversion, geomano_hpc.slurm"
WHERE = "print(*(module.__file__ for name, module in sys.modules.items() if name.startswith('geomano_hpc')), sep='\\n')"
REVISION = "from geomano_hpc.training.records.revision import git_revision; print(git_revision())"


def python(program: str, code: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(code)},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_every_module_comes_from_the_copy_and_none_from_the_checkout(tmp_path: Path) -> None:
    code = snapshot_code(tmp_path)
    files = python(f"import sys; {EVERY_PART}; {WHERE}", code).splitlines()
    assert len(files) > 20
    assert all(Path(file).is_relative_to(code) for file in files)
    assert not list(tmp_path.glob(".*"))


def test_copy_is_made_once_for_each_state_of_the_code_and_knows_its_revision(tmp_path: Path) -> None:
    code = snapshot_code(tmp_path)
    made = code.stat().st_mtime_ns
    assert snapshot_path(tmp_path) == snapshot_code(tmp_path) == code
    assert code.stat().st_mtime_ns == made
    assert python(REVISION, code) == str(git_revision())
    # The copy of a copy that was edited is another one.
    (code / "geomano_hpc" / "errors.py").open("a").write("\n# edited\n")
    again = (
        "from geomano_hpc.slurm import snapshot_path; from pathlib import Path; print(snapshot_path(Path('/x')).name)"
    )
    assert python(again, code) != code.name
