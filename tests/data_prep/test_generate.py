from pathlib import Path

import h5py
import numpy as np
import pytest

from geomano_hpc.data_prep.generate import Generation, generate, provenance
from geomano_hpc.errors import DataError

SMALL = Generation("darcy", samples=9, grid=12)


def test_any_number_of_workers_makes_the_same_data(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.h5", "two.h5")]
    for file, workers in zip(files, (1, 2), strict=True):
        assert generate(SMALL, file, workers)
    with h5py.File(files[0]) as one, h5py.File(files[1]) as two:
        for key in ("coeff", "sol"):
            assert np.array_equal(one[key][()], two[key][()])


def test_same_data_is_reused_and_other_data_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "data.h5"
    generate(SMALL, file, workers=1)
    before = file.read_bytes()
    assert generate(SMALL, file, workers=1) is False
    with pytest.raises(DataError, match="exists and was made with"):
        generate(Generation("darcy", samples=9, grid=13), file, workers=1)
    assert file.read_bytes() == before
    assert provenance(file) == {"problem": "darcy", "samples": 9, "grid": 12, "seed": 0}


def test_navier_stokes_file_has_the_benchmarks_layout(tmp_path: Path) -> None:
    file = tmp_path / "ns.h5"
    generate(Generation("navier_stokes", samples=1, grid=8, viscosity=1e-2), file)
    with h5py.File(file) as h5:
        assert {key: h5[key].shape for key in h5} == {"a": (1, 8, 8), "u": (1, 8, 8, 20), "t": (20,)}


def test_interrupted_generation_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(generation: Generation, index: int) -> dict[str, np.ndarray]:
        if index == 2:
            raise KeyboardInterrupt
        return {"coeff": np.zeros((2, 2))}

    monkeypatch.setattr("geomano_hpc.data_prep.generate.make_sample", fail)
    with pytest.raises(KeyboardInterrupt):
        generate(SMALL, tmp_path / "data.h5", workers=1)
    assert list(tmp_path.iterdir()) == []
