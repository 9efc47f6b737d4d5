"""`geomano data inspect` tells what is in a file without reading it, and its command runs as it is written."""

import json
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.io import savemat

from geomano_hpc.cli.app import main
from geomano_hpc.data_prep.inspection.field_groups import frames_in_and_out
from geomano_hpc.data_prep.inspection.guesses import guessed_axes
from geomano_hpc.data_prep.inspection.inspect import Inspected, inspect
from geomano_hpc.data_prep.store import Store, open_store
from geomano_hpc.errors import DataError
from tests.data_prep.test_reader_netcdf import dataset as netcdf
from tests.data_prep.test_reader_netcdf import written as written_netcdf
from tests.data_prep.test_reader_the_well import well
from tests.data_prep.test_reader_zarr import dataset, written
from tests.support.real_data import FOLDER, needs_real_data

N, T, H, W = 6, 5, 4, 7


def exit_code(words: list[str]) -> object:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(found: Inspected, number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The suggested command, as it would be copied into a shell."""
    monkeypatch.chdir(folder)
    words = shlex.split(found.suggestions[number].command)
    assert (words[0], exit_code(words[1:])) == ("geomano", 0)
    return open_store(folder / words[words.index("--out") + 1])


def commands(found: Inspected) -> str:
    return "\n".join(one.command for one in found.suggestions)


def pdebench(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        for seed, name in enumerate(("Vx", "density", "pressure")):
            file[name] = random(N, 21, 8, seed=seed)
        file["x-coordinate"], file["t-coordinate"] = (np.arange(8) + 0.5) / 8, np.arange(22) * 0.05
        file.attrs["eta"], file.attrs["version"] = 0.01, 3
    return path


def groups(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        for number in range(12):
            file[f"{number:04}/data"] = random(T, H, W, 2)
            for axis, size in (("t", T), ("x", H), ("y", W)):
                file[f"{number:04}/grid/{axis}"] = np.arange(float(size))
    return path


def darcy(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["nu"], file["tensor"] = random(N, 8, 7), random(N, 1, 8, 7)
        file["x-coordinate"], file["y-coordinate"] = np.linspace(0, 1, 8), np.linspace(0, 1, 7)
    return path


def netcdf_file(path: Path) -> Path:
    content = netcdf(
        u=(("member", "time", "lat", "lon"), random(N, T, H, W), {"units": "m/s", "long_name": "wind"}),
        mask=(("lat", "lon"), random(H, W)),
        re=("member", random(N)),
    )
    return written_netcdf(path, content)


def zarr_store(path: Path) -> Path:
    return written(path, dataset(u=(("sample", "time", "y", "x"), random(N, T, H, W))))


@pytest.mark.parametrize(
    ("make", "name", "kind", "fields"),
    [
        (pdebench, "flow.hdf5", "PDEBench (HDF5)", {"Vx", "density", "pressure"}),
        (groups, "rdb.h5", "HDF5 with a group for each of 12 samples, as in PDEBench", {"data.0", "data.1"}),
        (darcy, "beta.hdf5", "PDEBench (HDF5)", {"tensor"}),
        (well, "well.hdf5", "The Well (HDF5)", {"density", "velocity.x", "velocity.y"}),
        (netcdf_file, "wake.nc", "NetCDF-4 (HDF5)", {"u"}),
        (zarr_store, "raw.zarr", "Zarr, version 3", {"u"}),
    ],
)
def test_command_for_a_format_that_says_its_axes_runs_as_it_is_written(
    make: Any, name: str, kind: str, fields: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = inspect(make(tmp_path / name))
    assert found.format == kind
    assert not any(one.guessed for one in found.variables)
    assert "--axes" not in commands(found)
    assert found.suggestions[0].runs
    store = run(found, 0, tmp_path, monkeypatch)
    assert fields <= {one.name for one in store.card.targets}
    windows = store.card.windows
    if windows is not None:  # no frame is left out
        assert max(windows.starts) + windows.frames_in + windows.frames_out == windows.frames


def test_fields_beside_those_that_change_and_constants_are_given(tmp_path: Path) -> None:
    command = commands(inspect(netcdf_file(tmp_path / "wake.nc")))
    assert "--field u" in command
    assert "--input mask" in command
    assert "--constant re" in command
    found = inspect(well(tmp_path / "well.hdf5"))
    assert "--input t0_fields/mask" in commands(found)
    assert "--constant scalars/strength" in commands(found)
    assert "scalars/Re" in " ".join(found.suggestions[0].check)
    assert "scalars/drive" not in commands(found)
    hint = next(text for text in inspect(pdebench(tmp_path / "flow.hdf5")).suggestions[0].check if "numbers" in text)
    assert "--constant @eta (0.01)" in hint
    assert "version" not in hint


def test_lines_say_shape_type_axes_points_boundary_units_and_attributes(tmp_path: Path) -> None:
    text = "\n".join(inspect(netcdf_file(tmp_path / "wake.nc")).lines())
    for words in (
        "wake.nc: NetCDF-4 (HDF5), ",
        "u: 6 x 5 x 4 x 7, float32, axes sample t y x, in m/s",
        "t: 5 frames, from 0, spacing 6 hours",
        "x: 7 points, from 0, spacing 2.5 degrees_east",
        "long_name = wind",
        "title = example",
        "geomano data convert",
    ):
        assert words in text
    text = "\n".join(inspect(well(tmp_path / "well.hdf5")).lines())
    assert "x: 8 points, from 0, spacing 0.25, periodic" in text
    assert "c: xx, xy, yx, yy" in text
    assert all(len(line) <= 100 or str(tmp_path) in line for line in text.splitlines())


def test_what_cannot_be_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        file["u"], file["note"], file["nothing"] = random(N, 8, 8), "text", h5py.Empty("f4")
        file["empty"] = np.zeros((0, 8, 8))
        file["dangling"], file["outside"] = h5py.SoftLink("/nowhere"), h5py.ExternalLink("no.h5", "/u")
    found = inspect(tmp_path / "odd.h5")
    errors = {one.name: one.error for one in found.variables if one.error}
    assert set(errors) == {"note", "nothing"}
    assert "nothing: it holds nothing" in "\n".join(found.lines())
    assert "empty: 0 x 8 x 8, float64, empty" in "\n".join(found.lines())
    assert not found.suggestions[0].runs
    assert "there is one field only" in " ".join(found.suggestions[0].check)
    with pytest.raises(DataError, match="no such file"):
        inspect(tmp_path / "missing.h5")
    (tmp_path / "notes.txt").write_text("u")
    with pytest.raises(DataError, match="not a MATLAB"):
        inspect(tmp_path / "notes.txt")


def test_uneven_points_are_shown_and_the_command_says_that_it_is_refused(tmp_path: Path) -> None:
    found = inspect(well(tmp_path / "odd.hdf5", y=[0, 1, 4, 9]))
    assert "NOT evenly spaced" in "\n".join(found.lines())
    assert not found.suggestions[0].runs
    assert "--spacing y=STEP" in " ".join(found.suggestions[0].check)


def test_guess_is_marked_and_its_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "raw.npz", k=random(N, H, W), p=random(N, H, W), nu=random(N))
    found = inspect(tmp_path / "raw.npz")
    assert all(one.guessed for one in found.variables if len(one.shape) > 1)
    assert "axes perhaps sample t x (a guess)" in "\n".join(found.lines())
    with h5py.File(tmp_path / "named.h5", "w") as file:
        file["group/u"], file["group/v"] = random(N, H, W, T), random(N, H, W, T)
        file["x"], file["y"], file["time"] = np.arange(H), np.arange(W), np.arange(T)
    found = inspect(tmp_path / "named.h5")
    assert {one.axes for one in found.variables if len(one.shape) == 4} == {("sample", "x", "y", "t")}
    store = run(found, 0, tmp_path, monkeypatch)
    assert [one.name for one in store.card.targets] == ["u", "v"]
    assert store.read("frames", slice(None)).shape == (N * T, H, W, 2)


def test_names_that_are_there_twice_or_odd_are_given_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "darcy.h5", "w") as file:
        file["a/u"], file["b/u"], file["odd name=1"] = (random(N, 8, 8, seed=seed) for seed in range(3))
    found = inspect(tmp_path / "darcy.h5")
    assert "my_darcy.zarr" in commands(found)
    store = run(found, 0, tmp_path, monkeypatch)
    assert [one.name for one in store.card.inputs] == ["u", "b_u"]
    assert [one.name for one in store.card.targets] == ["odd_name_1"]


def test_one_trajectory_needs_more_files(tmp_path: Path) -> None:
    content = netcdf(u=(("time", "lat", "lon"), random(T, H, W)))
    found = inspect(written_netcdf(tmp_path / "one.nc", content))
    assert not found.suggestions[0].runs
    assert "ANOTHER_FILE" in found.suggestions[0].command


def test_files_of_the_benchmark_are_pointed_to_their_protocol(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file.create_dataset("coeff", (1200, 421, 421), "f4")
        file.create_dataset("sol", (1200, 421, 421), "f4")
    first, second = inspect(tmp_path / "all.h5").suggestions
    assert "--problem darcy --out data/darcy.zarr" in first.command
    assert "--problem steady --input coeff --target sol" in second.command


@needs_real_data
@pytest.mark.parametrize(
    ("file", "problem"), [("darcy_r421_N4.mat", "darcy"), ("ns_V1e-5_N2_T20_s256to64.mat", "navier_stokes")]
)
def test_both_commands_for_the_files_of_the_fno_authors_run(
    file: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = inspect((FOLDER / "fno_generator" / file).resolve())
    assert len(found.suggestions) == 2
    assert run(found, 0, tmp_path, monkeypatch).card.protocol == problem
    assert run(found, 1, tmp_path, monkeypatch).card.protocol is None


@needs_real_data
@pytest.mark.parametrize(
    "file", ["neuralop/darcy_test_16.pt", "neuralop/burgers_test_16.pt", "matlab/v7.mat", "matlab/v73.mat"]
)
def test_real_files_are_inspected(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = inspect((FOLDER / file).resolve())
    assert json.dumps(found.to_json())
    if found.suggestions[0].runs:
        assert run(found, 0, tmp_path, monkeypatch).card.train_samples > 1


def test_matlab_says_its_version(tmp_path: Path) -> None:
    for compressed, name in ((True, "MATLAB v7"), (False, "MATLAB v5")):
        savemat(tmp_path / "raw.mat", {"u": random(N, 8, 8)}, do_compression=compressed)
        assert inspect(tmp_path / "raw.mat").format == name
        (tmp_path / "raw.mat").unlink()


@pytest.mark.parametrize("frames", [*range(2, 60), 101, 997, 1000])
def test_suggested_windows_use_every_frame(frames: int) -> None:
    given, predicted = frames_in_and_out(frames)
    assert given >= 1
    assert predicted >= 1
    assert (frames - given) % predicted == 0


def test_guesses_have_an_axis_for_each_size() -> None:
    assert guessed_axes((2, 64, 64, 20), {}) == ("sample", "x", "y", "t")
    assert guessed_axes((64, 64, 20, 2), {}) == ("x", "y", "t", "sample")
    assert guessed_axes((10, 20, 64, 64), {}) == ("sample", "t", "x", "y")
    assert guessed_axes((10, 20, 32, 32, 32), {}) == ("sample", "t", "x", "y", "z")
    assert guessed_axes((421, 421, 1000), {}) == ("x", "y", "sample")
    assert guessed_axes((9, 7, 3), {"x": 7, "t": 3}) == ("sample", "x", "t")
    assert guessed_axes((1, 20), {}) is None


PROGRAM = """
import sys, time
from pathlib import Path
from geomano_hpc.data_prep.inspection.inspect import inspect
begin = time.perf_counter()
found = inspect(Path(sys.argv[1]))
found.to_json(), found.lines()
seconds = time.perf_counter() - begin
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(seconds, int(status["VmHWM"].split()[0]) / 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["late", "early", "chunked"])
def test_hundred_gigabytes_are_inspected_at_once(tmp_path: Path, layout: str) -> None:
    shape, path = (1600, 64, 512, 512), tmp_path / "large.h5"
    with h5py.File(path, "w") as file:
        if layout == "early":  # the space is there, and was never written
            created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            created.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            created.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            h5py.h5d.create(file.id, b"u", h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple(shape), created)
        else:
            file.create_dataset("u", shape, "f4", chunks=(1, 1, 256, 512) if layout == "chunked" else None)
    if layout == "early":
        assert path.stat().st_size > 100 << 30
        assert path.stat().st_blocks * 512 < 1 << 20
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True)
    seconds, mebibytes = map(float, done.stdout.split())
    assert seconds < 2
    assert mebibytes < 300


@pytest.mark.slow
def test_thousands_of_groups_and_of_variables(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "rdb.h5", "w") as file:
        for number in range(10_000):
            file[f"{number:04}/data"] = np.zeros((3, 4, 4, 1), "f4")
    with h5py.File(tmp_path / "many.h5", "w") as file:
        for number in range(3000):
            file[f"v{number}"] = np.zeros(3)
    for name, variables in (("rdb.h5", 1), ("many.h5", 3000)):
        begin = resource.getrusage(resource.RUSAGE_SELF)
        found = inspect(tmp_path / name)
        end = resource.getrusage(resource.RUSAGE_SELF)
        assert len(found.to_json()["variables"]) == variables
        assert len(found.lines()) < 150
        assert end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime < 10


def test_command_prints_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(pdebench(tmp_path / "flow.hdf5"))
    assert exit_code(["data", "inspect", path]) == 0
    assert "density: 6 x 21 x 8, float32, axes sample t x" in capsys.readouterr().out
    assert exit_code(["data", "inspect", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["name"] for one in found["variables"]} == {"Vx", "density", "pressure"}
    assert found["suggestions"][0]["runs"] is True
    assert exit_code(["data", "inspect", str(tmp_path / "missing.h5")]) == 1
