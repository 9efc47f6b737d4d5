import shutil
import subprocess
import sys

import pytest

from geomano_hpc.bench.data import conversion
from geomano_hpc.errors import GeomanoError


@pytest.mark.slow
def test_every_figure_of_the_conversion_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "POINTS", 48)
    found = {one.name: one for one in conversion.measure(quick=True)}
    assert {"convert, 1 rank", "memory, MATLAB v5", "memory, HDF5", "files"} <= found.keys()
    assert ("convert, 2 ranks over 1" in found) == (shutil.which("mpirun") is not None)
    assert all(one.value > 0 for one in found.values())
    assert found["memory, HDF5"].met
    assert found["files"].met


def test_wrong_numbers_get_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "POINTS", 48)
    loadmat = conversion.loadmat
    monkeypatch.setattr(conversion, "loadmat", lambda path: {k: v + 1 for k, v in loadmat(path).items() if k[0] != "_"})
    with pytest.raises(GeomanoError, match="'coeff' is wrong: no speed is reported"):
        conversion.measure(quick=True)


def test_process_whose_memory_is_measured_loads_no_torch() -> None:
    program = "import sys, geomano_hpc.bench.data.conversion; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
