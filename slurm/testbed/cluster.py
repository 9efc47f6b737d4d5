"""Bring the testbed up and take it down. Everything that it needs is in one folder, and on loopback."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from geomano_hpc.atomic import remove
from geomano_hpc.errors import ConfigError, GeomanoError
from geomano_hpc.slurm.testbed import configuration
from geomano_hpc.slurm.testbed.configuration import CLUSTER, GPUS_PER_NODE, NODES
from geomano_hpc.slurm.testbed.daemons import Daemons, wait_until
from geomano_hpc.slurm.testbed.packages import missing_packages

_PATIENCE = 240.0  # seconds for a daemon to come up, on a slow and busy machine


def default_folder() -> Path:
    return Path(os.environ.get("GEOMANO_SLURM_TESTBED") or f"/tmp/geomano-slurm-{os.getuid()}")  # noqa: S108 (short)


@dataclass(frozen=True)
class Testbed:
    __test__ = False  # not a test, for pytest

    folder: Path

    @cached_property
    def daemons(self) -> Daemons:
        return Daemons(self.folder)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to use this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def up(self) -> bool:
        """Bring it up; False if it was up already. What is left of a dead one is removed."""
        self._check()
        with self._locked():
            if self.is_up():
                return False
            self._down()
            try:
                self._up()
            except BaseException as error:
                self._stop_daemons()
                if isinstance(error, TimeoutError | OSError | subprocess.SubprocessError):
                    raise GeomanoError(f"the testbed did not come up: {error}; its logs: {self.folder}/log") from error
                raise
            return True

    def down(self) -> bool:
        """Take it down and remove its folder; False if there was none."""
        if not self.folder.is_dir():
            return False
        with self._locked():
            self._down()
            shutil.rmtree(self.folder)
        return True

    def is_up(self) -> bool:
        needed = ["munged", "mariadbd", "slurmdbd", "slurmctld", *(f"slurmd-{name}" for name in NODES)]
        return all(self.daemons.is_running(name) for name in needed)

    def run(self, *command: str, seconds: float = 120) -> str:
        """The output of one of Slurm's commands."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise GeomanoError(f"{' '.join(command)}: {' '.join((done.stderr or done.stdout).split())}")
        return done.stdout

    def node_states(self) -> dict[str, str]:
        lines = self.run("sinfo", "--noheader", "--Node", "--partition", "main", "--format", "%N %T").splitlines()
        return dict(line.split() for line in lines)

    def start_node(self, name: str) -> None:
        unshare = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = [*unshare, sys.executable, "-m", "geomano_hpc.slurm.testbed.node", name, str(self.folder)]
        self.daemons.start(f"slurmd-{name}", command)

    def cut_power(self, name: str) -> None:
        """Every process of the node is gone at once. Slurm finds out by itself, after SlurmdTimeout."""
        self.daemons.stop(f"slurmd-{name}", number=signal.SIGKILL)

    def _check(self) -> None:
        if os.getuid() != 0:
            raise ConfigError("the Slurm testbed must be run by root: its nodes are namespaces with names of their own")
        missing = missing_packages()
        if missing:
            raise ConfigError(
                f"the Slurm testbed needs packages that are not installed; "
                f"apt-get install --no-install-recommends {' '.join(missing)}"
            )
        if len(str(self.folder)) > 80:
            raise ConfigError(
                f"{self.folder}: too long, since sockets go there; choose a folder of at most 80 characters"
            )

    def _up(self) -> None:
        self._write_files()
        self._start_munge()
        self._start_database()
        run, daemons = self.run, self.daemons
        daemons.start("slurmdbd", ["/usr/sbin/slurmdbd", "-D"], {**self.environment, "MYSQL_UNIX_PORT": self._socket})
        self._wait("slurmdbd", ["sacctmgr", "--noheader", "list", "cluster"])
        run("sacctmgr", "--immediate", "add", "cluster", CLUSTER)
        daemons.start("slurmctld", ["/usr/sbin/slurmctld", "-D"], self.environment)
        self._wait("slurmctld", ["scontrol", "ping"])
        for name in NODES:
            self.start_node(name)
        self._wait_for_nodes()
        run("srun", "--nodes=2", "--ntasks=2", "hostname", seconds=_PATIENCE)

    def _write_files(self) -> None:
        ports = configuration.free_ports()
        for name in ("slurmctld", "munge", "dev", "log", "pid", *(f"slurmd/{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for name in NODES:
            (self.folder / "tmp" / name).mkdir(parents=True)
            (self.folder / "tmp" / name).chmod(0o1777)
        for index in range(GPUS_PER_NODE):
            os.mknod(self.folder / "dev" / f"gpu{index}", 0o020666, os.makedev(1, 3))
        files = {
            "slurm.conf": configuration.slurm_conf(self.folder, ports),
            "slurmdbd.conf": configuration.slurmdbd_conf(self.folder, ports),
            "gres.conf": configuration.gres_conf(self.folder),
            "hosts": configuration.hosts_file(Path("/etc/hosts").read_text(encoding="utf-8")),
        }
        for name, text in files.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        (self.folder / "slurmdbd.conf").chmod(0o600)

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))  # of this testbed alone, gone with it
        options = {
            "key-file": key,
            "socket": folder / "socket",
            "pid-file": folder / "pid",
            "seed-file": folder / "seed",
        }
        words = [f"--{name}={file}" for name, file in options.items()]
        log = f"--log-file={self.folder}/log/munged.log"
        self.daemons.start("munged", ["/usr/sbin/munged", "--foreground", "--num-threads=2", log, *words])
        self._wait("munged", ["munge", "--no-input", f"--socket={folder / 'socket'}"])

    def _start_database(self) -> None:
        data = self.folder / "database"
        options = ["--no-defaults", "--user=root", f"--datadir={data}", "--innodb-log-file-size=16M"]
        install = ["mariadb-install-db", *options, "--auth-root-authentication-method=socket", "--skip-test-db"]
        subprocess.run(install, check=True, capture_output=True, timeout=_PATIENCE)
        command = [
            "/usr/sbin/mariadbd",
            *options,
            f"--socket={self._socket}",
            f"--pid-file={self.folder}/pid/mariadbd.own",
        ]
        quick = ["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M", "--performance-schema=OFF"]
        self.daemons.start("mariadbd", [*command, "--skip-networking", "--innodb-lock-wait-timeout=900", *quick])
        self._wait("mariadbd", ["mariadb", "--no-defaults", f"--socket={self._socket}", "--execute=select 1"])

    @property
    def _socket(self) -> str:
        return str(self.folder / "database.socket")

    def _wait(self, daemon: str, question: Sequence[str]) -> None:
        def answers() -> bool:
            self._must_run(daemon)
            with contextlib.suppress(GeomanoError, subprocess.TimeoutExpired):
                self.run(*question, seconds=20)
                return True
            return False

        try:
            wait_until(answers, _PATIENCE)
        except TimeoutError:
            raise TimeoutError(f"{daemon} does not answer") from None

    def _wait_for_nodes(self) -> None:
        def are_idle() -> bool:
            for name in NODES:
                self._must_run(f"slurmd-{name}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                return set(self.node_states().values()) == {"idle"}
            return False

        try:
            wait_until(are_idle, _PATIENCE)
        except TimeoutError:
            raise TimeoutError(f"the nodes are {self.node_states()}") from None

    def _must_run(self, daemon: str) -> None:
        """One that has ended never answers: its own last words are the error."""
        if not self.daemons.is_running(daemon):
            said = self.daemons.log(daemon).read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise GeomanoError(f"{daemon} ended: {said[-1] if said else f'see {self.folder}/log'}")

    def _down(self) -> None:
        if self.daemons.is_running("slurmctld"):  # first, so that no process of a job outlives its node
            with contextlib.suppress(GeomanoError, subprocess.TimeoutExpired, TimeoutError):
                self.run("scancel", "--user=root")
                wait_until(lambda: not self.run("squeue", "--noheader").strip(), 15)
        self._stop_daemons()
        for entry in self.folder.iterdir():
            if entry.name != "lock":
                remove(entry)

    def _stop_daemons(self) -> None:
        for name in NODES:
            self.cut_power(name)
        for name in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
            self.daemons.stop(name)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One `up` or `down` at a time; a second waits for the first."""
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError), (self.folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if os.fstat(lock.fileno()).st_ino == (self.folder / "lock").stat().st_ino:
                    yield
                    return
            # A `down` removed the folder meanwhile, and with it the lock.
