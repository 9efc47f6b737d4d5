import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from geomano_hpc.cli.app import main
from geomano_hpc.data.torch_fft import TorchFft
from geomano_hpc.data_prep import generate as module
from geomano_hpc.data_prep.generate import Generation, generate, make_samples, provenance, unfinished
from geomano_hpc.errors import ConfigError, DataError
from tests.support.waiting import wait_until

SMALL = Generation("darcy", samples=9, grid=12)
AS_ROOT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
GENERATE = [sys.executable, "-m", "geomano_hpc", "data", "generate"]
needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")


def mpirun(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["mpirun", "-n", str(ranks), "--oversubscribe", *GENERATE, *arguments]
    return subprocess.run(command, env=AS_ROOT, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize(("problem", "viscosity"), [("darcy", None), ("navier_stokes", 1e-3), ("burgers", 0.1)])
@pytest.mark.slow
def test_sample_has_the_same_bits_in_any_order_and_company(problem: str, viscosity: float | None) -> None:
    how = Generation(problem, samples=5, grid=12, viscosity=viscosity)
    forth, back = make_samples(how, range(5)), make_samples(how, [4, 2])
    for key in forth:
        assert np.array_equal(forth[key][[4, 2]], back[key])


def test_any_number_of_workers_makes_the_same_file(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.h5", "two.h5")]
    for file, workers in zip(files, (1, 2), strict=True):
        assert generate(SMALL, file, workers)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert sorted(tmp_path.iterdir()) == files


@needs_mpirun
@pytest.mark.ranks
def test_any_number_of_mpi_ranks_makes_the_same_file(tmp_path: Path) -> None:
    generate(SMALL, tmp_path / "alone.h5", workers=1)
    done = mpirun(3, "darcy", "--samples", "9", "--grid", "12", "--out", str(tmp_path / "ranks.h5"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("wrote") == 1
    assert (tmp_path / "ranks.h5").read_bytes() == (tmp_path / "alone.h5").read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["alone.h5", "ranks.h5"]


@needs_mpirun
@pytest.mark.ranks
def test_an_error_ends_all_ranks(tmp_path: Path) -> None:
    generate(SMALL, tmp_path / "data.h5", workers=1)
    done = mpirun(2, "darcy", "--samples", "9", "--grid", "13", "--out", str(tmp_path / "data.h5"))
    assert done.returncode == 1
    assert "exists and was made with" in done.stderr


@pytest.mark.slow
def test_solver_has_the_same_bits_for_any_number_of_blas_threads() -> None:
    """mpirun binds a rank to a core, which changes the number of threads that a BLAS starts."""
    program = (
        "import hashlib; from geomano_hpc.data_prep.generators import darcy;"
        "print(hashlib.sha256(darcy.sample(0, 0, 201)[1].tobytes()).hexdigest())"
    )
    threads = [{"OMP_NUM_THREADS": number, "OPENBLAS_NUM_THREADS": number} for number in ("1", "2")]
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, **number}, capture_output=True, check=True
        ).stdout
        for number in threads
    }
    assert len(found) == 1


# Python imports it by itself at the start of each process.
SLOW_BLOCKS = """
import time
from geomano_hpc.data_prep import generate
right = generate.make_samples
def slow(*arguments):
    time.sleep(0.5)
    return right(*arguments)
generate.make_samples = slow
"""


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.slow
def test_killed_generation_leaves_no_file_and_goes_on_where_it_was(workers: int, tmp_path: Path) -> None:
    generation = Generation("darcy", samples=40, grid=51)
    out, whole = tmp_path / "data.h5", tmp_path / "whole.h5"
    parts = unfinished(generation, out)
    arguments = ["darcy", "--samples", "40", "--grid", "51", "--workers", str(workers), "--out", str(out)]
    slowly = tmp_path / "slowly"
    slowly.mkdir()
    (slowly / "sitecustomize.py").write_text(SLOW_BLOCKS)
    environment = {**os.environ, "PYTHONPATH": str(slowly)}
    job = subprocess.Popen([*GENERATE, *arguments], env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: parts.folder.exists() and len(parts.missing()) < 37)
    job.send_signal(signal.SIGKILL)
    job.wait()
    wait_until(lambda: not alive_in_session(job.pid))  # its workers end by themselves
    assert not out.exists()
    finished = {file: file.stat().st_mtime_ns for file in parts.folder.glob("*.npz")}
    assert 3 < len(finished) < 40

    made: list[int] = []
    original = module.make_samples

    def counted(generation: Generation, indices: range, transforms: None = None) -> dict[str, np.ndarray]:
        made.extend(indices)
        return original(generation, indices, transforms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "make_samples", counted)
        assert generate(generation, out, workers=1)
    assert len(made) == 40 - len(finished)
    generate(generation, whole, workers=1)
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(tmp_path.iterdir()) == [out, slowly, whole]


def test_ctrl_c_ends_a_generation_and_its_workers_with_one_line_and_keeps_finished_samples(tmp_path: Path) -> None:
    generation = Generation("darcy", samples=400, grid=51)
    out = tmp_path / "data.h5"
    parts = unfinished(generation, out)
    arguments = ["darcy", "--samples", "400", "--grid", "51", "--workers", "2", "--out", str(out)]
    job = subprocess.Popen([*GENERATE, *arguments], stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: parts.folder.exists() and any(parts.folder.glob("*.npz")))
    os.killpg(job.pid, signal.SIGINT)  # a terminal sends it to every process
    _, said = job.communicate(timeout=240)
    assert (job.returncode, said) == (130, "error: interrupted; what was finished is kept\n")
    wait_until(lambda: not alive_in_session(job.pid))
    assert [path for path in tmp_path.iterdir() if path != parts.folder] == []
    assert 0 < len(parts.missing()) < 400


def alive_in_session(session: int) -> list[int]:
    """Processes of a session, read from /proc; zombies do not count."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
def test_script_without_a_main_guard_makes_its_data_once(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from geomano_hpc.data_prep.generate import Generation, generate\n"
        "print('started', __name__, flush=True)\n"
        "made = generate(Generation('darcy', samples=9, grid=12), Path('data.h5'), workers=2)\n"
        "print(made, sys.modules['__main__'].__file__)\n"
    )
    command = [sys.executable, "-P", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["started __main__", f"True {script}"]
    generate(SMALL, tmp_path / "alone.h5", workers=1)
    assert (tmp_path / "data.h5").read_bytes() == (tmp_path / "alone.h5").read_bytes()


def test_worker_that_is_killed_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "from geomano_hpc.data_prep import generate\n"
        "generate.make_samples = lambda *_: os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(DataError, match=r"a process that makes .*data\.h5 died .* only what is missing is made$"):
        generate(SMALL, tmp_path / "data.h5", workers=2)


def test_same_data_is_reused_and_other_data_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "data.h5"
    generate(SMALL, file, workers=1)
    before = file.read_bytes()
    (tmp_path / ".data.h5.parts").mkdir()  # as a kill between the last two steps leaves it
    assert generate(SMALL, file, workers=1) is False
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(DataError, match="exists and was made with"):
        generate(Generation("darcy", samples=9, grid=13), file, workers=1)
    assert file.read_bytes() == before
    assert provenance(file) == {"problem": "darcy", "samples": 9, "grid": 12, "seed": 0, "generator": 2}


@pytest.mark.parametrize(("samples", "blocks"), [(3, 3), (300, 300), (1200, 300), (100_000, 6250)])
def test_blocks_are_many_and_hold_every_sample_once(samples: int, blocks: int) -> None:
    found = unfinished(Generation("darcy", samples, 12), Path("data.h5")).blocks()
    assert len(found) == blocks
    assert [index for block in found for index in block] == list(range(samples))


def test_unfinished_work_of_another_generation_is_an_error(tmp_path: Path) -> None:
    unfinished(Generation("darcy", samples=9, grid=13), tmp_path / "data.h5").open()
    with pytest.raises(DataError, match="holds the unfinished work of"):
        generate(SMALL, tmp_path / "data.h5", workers=1)


def test_failing_sample_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> dict[str, np.ndarray]:
        raise DataError("no convergence")

    monkeypatch.setattr(module, "make_samples", fail)
    with pytest.raises(DataError, match="no convergence"):
        generate(SMALL, tmp_path / "data.h5", workers=1)
    assert not (tmp_path / "data.h5").exists()
    assert not list((tmp_path / ".data.h5.parts").glob("*.npz"))


def layout(file: Path) -> dict[str, tuple[int, ...]]:
    with h5py.File(file) as h5:
        return {key: h5[key].shape for key in h5}


def test_navier_stokes_file_has_the_benchmarks_layout(tmp_path: Path) -> None:
    file = tmp_path / "ns.h5"
    generate(Generation("navier_stokes", samples=1, grid=8, viscosity=1e-2, solve_grid=16), file)
    assert layout(file) == {"a": (1, 8, 8), "u": (1, 8, 8, 20), "t": (20,)}
    assert provenance(file) == {
        "problem": "navier_stokes",
        "samples": 1,
        "grid": 8,
        "seed": 0,
        "generator": 2,
        "viscosity": 1e-2,
        "solve_grid": 16,
    }


def test_burgers_file_has_a_line_before_and_after(tmp_path: Path) -> None:
    file = tmp_path / "burgers.h5"
    generate(Generation("burgers", samples=2, grid=16, solve_grid=64), file)
    assert layout(file) == {"a": (2, 16), "u": (2, 16)}
    found = provenance(file)
    assert found is not None
    assert found["viscosity"] == 0.01


def test_device_is_chosen_loudly_and_stands_in_the_provenance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, plain = tmp_path / "torch.h5", tmp_path / "scipy.h5"
    size = ("--samples", "3", "--grid", "8", "--solve-grid", "16", "--viscosity", "0.001")
    for out, device in ((file, ("--device", "cpu")), (plain, ())):
        with pytest.raises(SystemExit) as ended:
            main(("data", "generate", "navier_stokes", *size, *device, "--out", str(out)))
        assert not ended.value.code
    assert "solving in batches with torch on cpu" in capsys.readouterr().err
    found, other = provenance(file), provenance(plain)
    assert found is not None
    assert other is not None
    assert found == {**other, "transforms": "torch-cpu"}
    with h5py.File(file) as one, h5py.File(plain) as two:
        np.testing.assert_allclose(one["u"][()], two["u"][()], atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"problem": "heat"}, "'heat' is not known; known problems: darcy, navier_stokes, burgers"),
        ({"problem": "darcy", "solve_grid": 24}, "leave out --solve-grid"),
        ({"problem": "burgers", "solve_grid": 20}, "--solve-grid 20 is not a multiple of --grid 12"),
        ({"problem": "darcy", "transforms": TorchFft("cpu").name}, "darcy is solved on the CPU"),
    ],
)
def test_settings_that_make_no_sense_are_errors(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Generation(**{"samples": 1, "grid": 12, **settings})  # type: ignore[arg-type]
