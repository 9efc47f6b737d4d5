"""Who starts which runs: two launches of the same study at the same time never start a run twice.

Deciding what to start is done by one process at a time. What it decided to start it claims: a file that lists the runs,
locked as long as the process lives. A process that is killed loses its claims with its lock, and nothing is left to
clean up. The locks are those of the file system, so on a cluster they hold between machines where the file system has
them (NFS 4, Lustre mounted with flock); Slurm jobs are known by their own state besides.
"""

import contextlib
import fcntl
import json
import os
import platform
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

from geomano_hpc.atomic import write_json
from geomano_hpc.locks import is_locked, one_at_a_time

_CLAIMS = ".launches"


@contextlib.contextmanager
def deciding(study: Path) -> Iterator[None]:
    """Hold the study while it is decided what to start. Another launch waits: a second or two."""
    with one_at_a_time(study / ".deciding.lock"):
        yield


class Claim:
    """Runs that this process is going to start. It ends with the block, or with the process."""

    def __init__(self, study: Path, runs: Iterable[str]) -> None:
        """To be made while `deciding`."""
        folder = study / _CLAIMS
        folder.mkdir(exist_ok=True)
        _remove_left_over(folder)
        self._file = folder / f"{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}.json"
        write_json(self._file, {"host": platform.node(), "pid": os.getpid(), "runs": sorted(runs)})
        self._lock = self._file.open("r+")  # NFS gives an exclusive lock only on a file that is open for writing
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def __enter__(self) -> "Claim":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        self._file.unlink(missing_ok=True)
        self._lock.close()


def claimed_runs(study: Path) -> set[str]:
    """Names of the runs that living processes have claimed."""
    names: set[str] = set()
    for file in _claims(study / _CLAIMS):
        with contextlib.suppress(FileNotFoundError), file.open("r") as claim:  # it ends while we look
            if is_locked(claim):
                names.update(json.loads(claim.read())["runs"])
    return names


def _claims(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*.json") if not file.name.startswith(".")] if folder.is_dir() else []


def _remove_left_over(folder: Path) -> None:
    for file in _claims(folder):
        with contextlib.suppress(FileNotFoundError), file.open("r") as claim:
            if not is_locked(claim):
                file.unlink()
