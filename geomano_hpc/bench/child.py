"""Runs a function in a process of its own: what it measures is not disturbed by what this process did before.

Arguments and answer are JSON. With a launcher several processes run the function, as ranks; the one whose answer is not
None gives it.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from geomano_hpc.errors import GeomanoError

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
ALONE = (sys.executable,)


def run_in_child(
    function: Callable[..., Any],
    *arguments: Any,
    launcher: Sequence[str] = ALONE,
    environment: Mapping[str, str | None] | None = None,
) -> Any:
    """The answer of a function that stands at the top of a module. `environment` changes variables, None removes one;
    `launcher` is the command up to where the options of Python go."""
    changes = environment or {}
    variables = {**os.environ, **{name: value for name, value in changes.items() if value is not None}}
    for name in (name for name, value in changes.items() if value is None):
        variables.pop(name, None)
    with TemporaryDirectory(prefix="geomano-bench-") as folder:
        answer = Path(folder) / "answer.json"
        order = json.dumps([function.__module__, function.__qualname__, arguments, str(answer)])
        command = [*launcher, "-m", __name__, order]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode or not answer.exists():
            reason = _reason(done.stderr) or f"exit code {done.returncode}"
            raise GeomanoError(f"{function.__module__}.{function.__qualname__} failed: {reason}")
        return json.loads(answer.read_text(encoding="utf-8"))


def mpi(ranks: int) -> tuple[tuple[str, ...], dict[str, str | None]]:
    """Launcher and environment for so many MPI ranks, not bound to cores: a busy machine may have given one of them to
    somebody else."""
    settings: dict[str, str | None] = {
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }
    if os.geteuid() == 0:  # in a container
        settings |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return ("mpirun", "-n", str(ranks), "--oversubscribe", *ALONE), settings


def _reason(stderr: str) -> str:
    """The last line that names an error: launchers say more after it."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"(\[rank\d+\]: )?[\w.]+(Error|Exception)\b", line)]
    return (named or lines or [""])[-1]


def _carry_out(order: str) -> None:
    module, name, arguments, path = json.loads(order)
    found = getattr(import_module(module), name)(*arguments)
    if found is not None:
        Path(path).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    _carry_out(sys.argv[1])
