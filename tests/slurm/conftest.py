"""One Slurm testbed for all tests of a session, also where several pytest workers share them."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from geomano_hpc.slurm.testbed import Testbed
from geomano_hpc.slurm.testbed.packages import missing_packages


@pytest.fixture(scope="session")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """The first worker that needs it brings it up, the last one that used it takes it down."""
    if os.getuid() != 0 or missing_packages():
        pytest.skip(f"the Slurm testbed needs root and {missing_packages() or 'nothing else'} (make system-packages)")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    # Not below pytest's own folder: munge wants one that every user may enter.
    bed, users = Testbed(Path(f"/tmp/geomano-slurm-{shared.name}")), shared / "slurm-users"  # noqa: S108
    with _locked(users):
        bed.up()
        with users.open("a") as file:
            file.write(f"{os.getpid()}\n")
    yield bed
    with _locked(users):
        others = [pid for pid in users.read_text().split() if pid != str(os.getpid())]
        users.write_text("".join(f"{pid}\n" for pid in others))
        if not any(Path(f"/proc/{pid}").exists() for pid in others):
            bed.down()


class _locked:  # noqa: N801 (used like a function)
    def __init__(self, file: Path) -> None:
        self._lock = file.with_suffix(".lock").open("w")

    def __enter__(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._lock.close()


@pytest.fixture
def cluster(testbed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Testbed]:
    """The testbed for this test alone, with this process as a user of it in a folder of its own."""
    monkeypatch.setenv("SLURM_CONF", testbed.environment["SLURM_CONF"])
    monkeypatch.chdir(tmp_path)
    with _locked(testbed.folder / "test"):  # two tests would take each other's nodes away
        yield testbed
