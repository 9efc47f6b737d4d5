import shutil

import pytest

from geomano_hpc.bench.data import conversion as data_conversion
from geomano_hpc.errors import GeomanoError


def test_every_figure_of_the_conversion_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_conversion, "POINTS", 48)
    found = {one.name: one for one in data_conversion.measure(quick=True)}
    assert {"convert, 1 rank", "memory, MATLAB v5", "memory, HDF5", "files"} <= found.keys()
    assert ("convert, 2 ranks over 1" in found) == (shutil.which("mpirun") is not None)
    assert all(one.value > 0 for one in found.values())
    assert found["memory, HDF5"].met
    assert found["files"].met


def test_wrong_numbers_get_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_conversion, "POINTS", 48)
    loadmat = data_conversion.loadmat
    monkeypatch.setattr(
        data_conversion, "loadmat", lambda path: {k: v + 1 for k, v in loadmat(path).items() if k[0] != "_"}
    )
    with pytest.raises(GeomanoError, match="'coeff' is wrong: no speed is reported"):
        data_conversion.measure(quick=True)
