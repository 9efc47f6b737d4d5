"""Compilation of the C++ kernel: once, whoever asks first, and loud where it fails."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from geomano_hpc.errors import BackendError
from geomano_hpc.kernels.cpu import extension as cpu_extension
from geomano_hpc.kernels.cpu.capability import NAMES, runnable

PATIENCE = 1200.0  # seconds, for a slow and busy machine
SCAN = """
import logging; logging.basicConfig(level="INFO", format="%(message)s")
import torch
from geomano_hpc.kernels import geo_scan, order_set
ones = torch.ones
y = geo_scan(ones(1, 2, 2, 3), ones(1, 2, 2, 2, 3), -ones(2, 3, 4), ones(1, 2, 2, 2, 4), ones(1, 2, 2, 2, 4),
             D=ones(2, 3), R=None, dt_bias=ones(2, 3), orders=order_set("sequence"), kind="1d", backend="cpu")
print(y.sum().item())
print(sorted({line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}))
"""


def quick_compiler(folder: Path) -> str:
    """The compiler, told last to optimise nothing: what is tested is when it runs, not what it makes."""
    script = folder / "quick-c++"
    script.write_text('#!/bin/sh\nexec c++ "$@" -O0\n')
    script.chmod(0o755)
    return str(script)


def start(cache: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCAN],
        env={**os.environ, "GEOMANO_CACHE": str(cache), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.compile
@pytest.mark.slow(30)
def test_processes_that_start_together_compile_once_and_a_killed_one_leaves_nothing(tmp_path: Path) -> None:
    quick = quick_compiler(tmp_path)
    killed = start(tmp_path, CXX=quick)
    deadline = time.monotonic() + PATIENCE
    while not list(tmp_path.glob("kernels/*/build.ninja")):
        assert time.monotonic() < deadline, "compilation did not start"
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)  # its compiler, too
    killed.communicate()
    assert not list(tmp_path.glob(f"kernels/*/{cpu_extension._LIBRARY}"))

    processes = [start(tmp_path, CXX=quick) for _ in range(2)]
    results = [process.communicate(timeout=PATIENCE) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    assert results[0][0] == results[1][0]
    assert len(results[0][0].splitlines()[1].split(",")) == 1  # one OpenMP: torch's own
    messages = results[0][1] + results[1][1]
    assert messages.count("compiling the scan kernel for") == 1
    assert messages.count("another process is compiling") == 1
    assert len(list(tmp_path.glob(f"kernels/*/{cpu_extension._LIBRARY}"))) == 1

    again = start(tmp_path, CXX="no-such-compiler")  # the cached library needs no compiler
    assert again.communicate(timeout=PATIENCE)[0] == results[0][0]


def test_compiler_that_fails_is_named_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\ncase "$*" in *version*) echo 12.2.0;; *) echo broken >&2; exit 1;; esac\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("GEOMANO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(cpu_extension, "OPTIMISATION", "-O1")  # none that is loaded already
    with pytest.raises(
        BackendError, match=r"does not compile with .*c\+\+: see (.*\.log); or choose another"
    ) as caught:
        cpu_extension.load_library()
    log = Path(str(caught.value).split("see ")[1].split(";")[0])
    assert "broken" in log.read_text()
    assert [path.suffix for path in sorted((tmp_path / "cache" / "kernels").iterdir())] == [".lock", ".log"]


@pytest.mark.compile
def test_process_can_compile_again_after_a_failure(tmp_path: Path) -> None:
    """Torch numbers the libraries that a process builds; ours has one name."""
    program = """
import os, sys
from pathlib import Path
from geomano_hpc.errors import BackendError
from geomano_hpc.kernels.cpu import extension as cpu_extension
cpu_extension._SOURCES = Path(sys.argv[2])
os.environ["CXX"] = sys.argv[1]
try:
    cpu_extension.load_library()
except BackendError:
    os.environ["CXX"] = "c++"
    print(cpu_extension.load_library().seven())
"""
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\ncase "$*" in *version*) echo 12.2.0;; *) exit 1;; esac\n')
    compiler.chmod(0o755)
    environment = {**os.environ, "GEOMANO_CACHE": str(tmp_path / "cache")}
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "seven.cpp").write_text('extern "C" int seven() { return 7; }\n')
    command = [sys.executable, "-c", program, str(compiler), str(sources)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.stdout == "7\n", found.stderr


def test_ninja_of_this_environment_is_found_without_activating_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEOMANO_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cpu_extension.unavailable_because() is None


def test_machine_without_a_compiler_is_told_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEOMANO_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no no-such-compiler on this machine" in str(cpu_extension.unavailable_because())


def test_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEOMANO_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(cpu_extension, "OPTIMISATION", "-O1")  # none that is loaded already
    with pytest.raises(BackendError, match=r"cannot write its cache .*set GEOMANO_CACHE to another folder"):
        cpu_extension.load_library()


@pytest.mark.parametrize("capability", [name for name in NAMES if name not in runnable()])
def test_kernel_compiles_for_vectors_that_this_machine_lacks(capability: str, tmp_path: Path) -> None:
    """Others are compiled and run by test_cpu_capability.py."""
    from torch.utils import cpp_extension

    includes = [argument for folder in cpp_extension.include_paths() for argument in ("-isystem", folder)]
    sources = [str(source) for source in sorted(cpu_extension._SOURCES.glob("*.cpp"))]
    command = ["c++", "-std=c++20", "-fPIC", *cpu_extension.flags(capability), *includes, "-fsyntax-only", *sources]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
