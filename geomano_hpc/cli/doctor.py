"""geomano doctor"""

import contextlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from geomano_hpc.cli.output import Json, note, print_json, stdout_for
from geomano_hpc.cli.self_test import SelfTest, SelfTestError
from geomano_hpc.progress import is_quiet


def doctor(
    json_: Json = False,
    self_test: Annotated[
        bool | None,
        typer.Option(
            "--self-test/--no-self-test",
            help="Test every scan kernel on the GPU itself, a minute or two. By default where a GPU is seen.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show what this machine offers: GPUs, scan backends and why one is missing, MPI, Slurm, versions.

    On a GPU the kernels are tested against the reference, and training asks for the verdict (docs/gpu_kernels.md).
    Exit code 0 if training can run here, 1 if not.

    \b
    Examples:
      geomano doctor
      geomano doctor --json
      geomano doctor --no-self-test
    """
    if not json_:
        typer.echo(f"{'python':16} {platform.python_version()} on {platform.platform()}, {os.cpu_count()} cores")
    checks = []
    test = SelfTest(note if json_ else _show) if self_test or (self_test is None and _sees_a_gpu()) else None
    for name, check, needed in (*_CHECKS[:2], *(test.checks() if test else ()), *_CHECKS[2:]):
        mark = "ok"
        with stdout_for(json_):
            try:
                lines = check()
            except SelfTestError as error:
                lines, mark = [str(error)], "FAILED"
            except Exception as error:
                lines, mark = [f"not available: {' '.join(str(error).split())}"], "MISSING" if needed else "-"
        checks.append({"name": name, "ok": mark == "ok", "needed": needed, "lines": lines})
        for number, line in enumerate(() if json_ else lines):
            typer.echo(f"{name if number == 0 else '':16} {mark if number == 0 else '':8}{line}")
    can_train = all(check["ok"] or not check["needed"] for check in checks)
    if json_:
        print_json(
            {"can_train": can_train, **_machine(), "checks": checks, "self_test": test.content if test else None}
        )
        raise typer.Exit(0 if can_train else 1)
    typer.echo(
        "training can run here" if can_train else "training cannot run here: see the lines marked MISSING or FAILED"
    )
    if test and test.failed:
        typer.echo(test.failed)
    raise typer.Exit(0 if can_train else 1)


def _show(line: str) -> None:
    if not is_quiet():
        typer.echo(line)


def _machine() -> dict[str, Any]:
    from geomano_hpc.training.records.environment import package_versions

    found: dict[str, Any] = {"gpus": [], "scan_backend": None}
    with stdout_for(True), contextlib.suppress(Exception):  # the checks say what is wrong
        from geomano_hpc.kernels import choose_backend

        found["scan_backend"] = choose_backend("auto")
        found["gpus"] = _gpus()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "packages": package_versions(),
        **found,
    }


def _versions() -> list[str]:
    from geomano_hpc.training.records.environment import package_versions

    return [", ".join(f"{name} {found or 'missing'}" for name, found in package_versions().items())]


def _gpus() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees no GPU; training runs on the CPU")
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _sees_a_gpu() -> bool:
    with contextlib.suppress(Exception):  # the checks say what is wrong
        import torch

        return torch.cuda.is_available()
    return False


def _scan_backends() -> list[str]:
    from geomano_hpc.kernels import backend_statuses, choose_backend

    lines = [
        f"{status.name}: {'available' if status.available else 'not available'}, {status.reason}"
        for status in backend_statuses()
    ]
    return [*lines, f"auto takes: {choose_backend('auto')}"]


def _training_step() -> list[str]:
    """One step of a tiny model in the real engine, so that the answer is shown and not guessed."""
    import torch

    from geomano_hpc.config import TrainingConfig
    from geomano_hpc.models import GeoMaNO
    from geomano_hpc.training.distributed.ranks import Ranks
    from geomano_hpc.training.distributed.world import join
    from geomano_hpc.training.engines.engine import start_engine

    alone = Ranks(0, 1, 0)
    join(alone)
    model = GeoMaNO(in_channels=1, out_channels=1, depth=1, embedding=8, dstate=2)
    engine = start_engine(model, TrainingConfig(), total_steps=2, ranks=alone)
    engine.backward(engine.network(torch.randn(1, 4, 4, 1, device=engine.device)).square().sum(), last=True)
    engine.step()
    return [f"a tiny model took a step on {engine.device}"]


def _deepspeed() -> list[str]:
    from geomano_hpc.training.distributed.ranks import Ranks
    from geomano_hpc.training.engines.deepspeed import import_deepspeed
    from geomano_hpc.training.engines.engine import pick_device

    device = pick_device(Ranks(0, 1, 0))
    return [f"version {import_deepspeed(device).__version__} on {device.type}"]


def _mpi() -> list[str]:
    """In a process of its own: a broken MPI may end the process that loads it."""
    program = "from mpi4py import MPI; print(MPI.Get_library_version().splitlines()[0])"
    try:
        return [_output([sys.executable, "-c", program]).strip("\0")]  # Open MPI's ends with a null
    except RuntimeError as error:
        raise RuntimeError(f"{error} (needed only for data conversion with several ranks)") from error


def _slurm() -> list[str]:
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise RuntimeError("no sbatch on this machine (needed only for --cluster slurm)")
    return [_output([sbatch, "--version"])]


def _output(command: list[str]) -> str:
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if found.returncode:
        raise RuntimeError((found.stderr.strip().splitlines() or [f"exit code {found.returncode}"])[-1])
    return found.stdout.strip()


_CHECKS: tuple[tuple[str, Callable[[], list[str]], bool], ...] = (
    ("versions", _versions, True),
    ("GPUs", _gpus, False),
    ("scan backends", _scan_backends, True),
    ("DeepSpeed", _deepspeed, True),
    ("training step", _training_step, True),
    ("MPI", _mpi, False),
    ("Slurm", _slurm, False),
)
