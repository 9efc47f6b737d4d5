"""The C compiler that Triton builds its launcher with, at the first launch on a machine: found and tried likewise.

Triton takes $CC, else gcc, else clang, needs Python.h, and loads what it has built.
"""

import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from geomano_hpc.errors import BackendError, in_one_line

_NAME = "geomano_launcher_check"
_SOURCE = f"""
#include <Python.h>
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{_NAME}", NULL, -1, NULL}};
PyMODINIT_FUNC PyInit_{_NAME}(void) {{ return PyModule_Create(&module); }}
"""


def check_compiler() -> str:
    """What was found, in words; an error that names the fix if Triton could not build its launcher."""
    compiler = _compiler()
    include = _include()
    if not (include / "Python.h").exists():
        raise BackendError(
            f"no Python.h in {include}, which Triton's launcher is compiled with: install the headers of this Python "
            "(python3-dev, python3-devel), or take a Python of conda or uv, which has them"
        )
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / f"{_NAME}.c", Path(folder) / f"{_NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"
        source.write_text(_SOURCE, encoding="utf-8")
        command = [compiler, str(source), "-O3", "-shared", "-fPIC", "-Wno-psabi", "-o", str(library), f"-I{include}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            raise BackendError(
                f"the C compiler {compiler} does not start: {in_one_line(error)}; set CC to the path of gcc or clang"
            ) from error
        if done.returncode:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            said = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no words")
            raise BackendError(
                f"the C compiler {compiler} cannot build Triton's launcher: {said}; set CC to another gcc or clang "
                "(on a cluster: module load gcc)"
            )
        _load(library)
    return f"{compiler} builds Triton's launcher"


def _compiler() -> str:
    given = os.environ.get("CC")
    if given is not None:
        return given
    found = shutil.which("gcc") or shutil.which("clang")
    if found is None:
        raise BackendError(
            "no C compiler for Triton's launcher: install gcc (on a cluster: module load gcc), or set CC to a compiler"
        )
    return found


def _include() -> Path:
    scheme = sysconfig.get_default_scheme()
    # Debian's own scheme names a folder without headers; Triton takes this one as well.
    return Path(sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"])


def _load(library: Path) -> None:
    spec = importlib.util.spec_from_file_location(_NAME, library)
    try:
        assert spec is not None
        importlib.util.module_from_spec(spec)
    except ImportError as error:
        raise BackendError(
            f"a compiled launcher does not load from {library.parent}: {in_one_line(error)}; set TMPDIR and "
            "TRITON_CACHE_DIR to folders that programs may run from"
        ) from error
