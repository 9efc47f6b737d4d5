"""Start daemons detached from this process, remember them by process id and start time, and end only those."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from geomano_hpc.errors import GeomanoError


@dataclass(frozen=True)
class Daemons:
    """The daemons of one testbed. A process id that now belongs to another process does not count."""

    folder: Path

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        if self.is_running(name):
            raise GeomanoError(f"{name} is running already in {self.folder}")
        log = self.log(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        self._file(name).parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self._file(name).write_text(f"{process.pid} {_start_time(process.pid)}\n", encoding="utf-8")

    def is_running(self, name: str) -> bool:
        return self._pid(name) is not None

    def names(self) -> list[str]:
        return sorted(file.name.removesuffix(".started") for file in (self.folder / "pid").glob("*.started"))

    def stop(self, name: str, seconds: float = 20, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask it to end, wait, and kill it if it does not."""
        for send, patience in ((number, seconds), (signal.SIGKILL, 10.0)):
            pid = self._pid(name)
            if pid is None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, send)
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: not self.is_running(name), patience)
        if self.is_running(name):
            raise GeomanoError(f"{name} (process {self._pid(name)}) does not end, not even when killed")
        self._file(name).unlink(missing_ok=True)

    def log(self, name: str) -> Path:
        return self.folder / "log" / f"{name}.out"

    def _pid(self, name: str) -> int | None:
        try:
            pid, started = self._file(name).read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            return None
        with contextlib.suppress(ChildProcessError, OSError):
            os.waitpid(int(pid), os.WNOHANG)  # if it was started by this very process, it is a zombie until asked for
        return int(pid) if _start_time(int(pid)) == started else None

    def _file(self, name: str) -> Path:
        return self.folder / "pid" / f"{name}.started"


def wait_until(is_so: Callable[[], bool], seconds: float) -> None:
    """Ask again and again, at short intervals; TimeoutError if it does not come true."""
    limit = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > limit:
            raise TimeoutError
        time.sleep(0.1)


def _start_time(pid: int) -> str | None:
    """In ticks since the machine started; with the process id it names one process forever. None for a dead one."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
