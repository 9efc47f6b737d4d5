"""A file that is larger than the memory converts, whatever the layout of it."""

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from geomano_hpc.data_prep.store import open_store

pytestmark = pytest.mark.slow

LIMIT_MIB, FILE_MIB = 160, 320

PROGRAM = f"""
import resource, sys
from pathlib import Path
import numpy as np
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.problems import own_problem, problem
from geomano_hpc.data_prep.conversion.splits import SplitRule
import zarr.core.sync, zarr.storage
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
held = int(status["VmData"].split()[0]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (held + {LIMIT_MIB << 20},) * 2)
try:
    np.ones({FILE_MIB << 17})
except MemoryError:
    print("the file does not fit into memory")
if sys.argv[3:4] == ["long"]:
    frames = dict(axes=sys.argv[4], frames_in=3, frames_out=5, stride=4)
    settings = own_problem("rollout", "mine", [], ["u"], [], SplitRule(train=1, test=1), **frames)
    convert([Path(sys.argv[1]), Path(sys.argv[5])], settings, Path(sys.argv[2]))
else:
    samples = int(sys.argv[3])
    settings = problem("darcy", train_samples=samples - 2, test_samples=2, stride=8)
    convert([Path(sys.argv[1])], settings, Path(sys.argv[2]))
"""


@pytest.mark.parametrize("layout", ["samples_first", "v73_contiguous", "v73_chunked"])
def test_hdf5_file_larger_than_memory_is_converted(tmp_path: Path, layout: str) -> None:
    points, samples = 128, FILE_MIB * 2**20 // (2 * 8 * 128 * 128)
    raw = tmp_path / "raw.mat"
    pattern = np.random.default_rng(0).standard_normal((points, points))
    with h5py.File(raw, "w") as file:
        for key in ("coeff", "sol"):
            shape = (samples, points, points) if layout == "samples_first" else (points, points, samples)
            chunks = (16, 16, samples) if layout == "v73_chunked" else None
            field = file.create_dataset(key, shape, "f8", chunks=chunks)
            if layout == "samples_first":
                for start in range(0, samples, 64):
                    field[start : start + 64] = pattern + np.arange(samples)[start : start + 64, None, None]
                continue
            field.attrs["MATLAB_class"] = np.bytes_("double")
            for start in range(0, points, 16):
                rows = pattern.transpose()[start : start + 16]
                field[start : start + 16] = rows[:, :, None] + np.arange(samples, dtype=float)
    command = [sys.executable, "-c", PROGRAM, str(raw), str(tmp_path / "store.zarr"), str(samples)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "does not fit" in done.stdout
    found = open_store(tmp_path / "store.zarr").read("target", slice(samples - 3, samples))[..., 0]
    expected = pattern[::8, ::8] + np.arange(samples - 3, samples)[:, None, None]
    assert np.array_equal(found, expected.astype(np.float32))


@pytest.mark.parametrize("axes", ["t x y", "x y t"])
def test_single_trajectory_larger_than_memory_is_converted(tmp_path: Path, axes: str) -> None:
    points, frames = 128, (LIMIT_MIB + 40) * 2**20 // (8 * 128 * 128)
    pattern = np.random.default_rng(0).standard_normal((points, points))
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            shape = (frames, points, points) if axes[0] == "t" else (points, points, frames)
            field = file.create_dataset("u", shape, "f8")
            for start in range(0, shape[0], 16):
                rows = slice(start, start + 16)
                if axes[0] == "t":
                    field[rows] = pattern + number + np.arange(frames)[rows, None, None]
                else:
                    field[rows] = pattern[rows, :, None] + number + np.arange(frames, dtype=float)
    files = [str(tmp_path / f"{number}.h5") for number in range(2)]
    command = [sys.executable, "-c", PROGRAM, files[0], str(tmp_path / "store.zarr"), "long", axes, files[1]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "does not fit" in done.stdout
    found = open_store(tmp_path / "store.zarr").read("frames", slice(2 * frames - 3, 2 * frames))[..., 0]
    expected = pattern[::4, ::4] + 1 + np.arange(frames - 3, frames)[:, None, None]
    assert np.array_equal(found, expected.astype(np.float32))
