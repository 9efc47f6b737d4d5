"""Any number of ranks, and any number of kills, end in the same bytes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scipy.io import savemat

from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.data_prep.ranks import SingleProcess, communicator
from geomano_hpc.data_prep.verify import verify
from tests.support.raw_files import read_field

DARCY = problem("darcy", train_samples=10, test_samples=4, stride=2)
SIZES = ("--problem", "darcy", "--train", "10", "--test", "4", "--stride", "2")
mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun on this machine")
AS_ROOT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
FEW_IN_A_SHARD = "from geomano_hpc.data_prep import shards; shards.SHARD_BYTES = 3 * 9 * 9 * 4"


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def mpi(ranks: int, program: list[str]) -> subprocess.CompletedProcess[str]:
    command = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", sys.executable, *program]
    return subprocess.run(command, env=AS_ROOT, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def raw(darcy_raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compressed, with the samples on the fastest axis: the file with the most steps on its way."""
    path = tmp_path_factory.mktemp("raw") / "raw.mat"
    savemat(path, {key: read_field(darcy_raw, key) for key in ("coeff", "sol")}, do_compression=True)
    return path


@pytest.fixture(scope="module")
def expected(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed conversion by one process, three samples to a shard."""
    out = tmp_path_factory.mktemp("expected") / "store.zarr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("geomano_hpc.data_prep.shards.SHARD_BYTES", 3 * 9 * 9 * 4)
        convert([raw], DARCY, out)
    return out


PROGRAM = f"""
import sys
from pathlib import Path
{FEW_IN_A_SHARD}
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.data_prep.ranks import communicator
settings = problem("darcy", train_samples=10, test_samples=4, stride=2)
convert([Path(sys.argv[1])], settings, Path(sys.argv[2]), communicator())
"""


@mpirun
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.ranks
def test_several_mpi_ranks_write_the_same_bytes_as_one(raw: Path, expected: Path, tmp_path: Path, ranks: int) -> None:
    done = mpi(ranks, ["-c", PROGRAM, str(raw), str(tmp_path / "store.zarr")])
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / "store.zarr") == files_of(expected)
    assert [path.name for path in tmp_path.iterdir()] == ["store.zarr"]


@mpirun
@pytest.mark.ranks
def test_command_runs_under_mpirun(darcy_raw: Path, darcy_store: Path, tmp_path: Path) -> None:
    done = mpi(2, ["-m", "geomano_hpc", "data", "convert", str(darcy_raw), *SIZES, "--out", str(tmp_path / "mpi.zarr")])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("wrote") == 1
    assert "10 train + 4 test samples on 9 x 9 points" in done.stdout
    assert files_of(tmp_path / "mpi.zarr") == files_of(darcy_store)


@mpirun
@pytest.mark.ranks
def test_an_error_of_any_rank_ends_all_and_nothing_is_left(darcy_raw: Path, tmp_path: Path) -> None:
    field = read_field(darcy_raw, "sol")
    field[11] = float("nan")
    savemat(tmp_path / "bad.mat", {"coeff": read_field(darcy_raw, "coeff"), "sol": field})
    command = ["-m", "geomano_hpc", "data", "convert", str(tmp_path / "bad.mat"), *SIZES]
    done = mpi(2, [*command, "--out", str(tmp_path / "x.zarr")])
    assert done.returncode == 1
    assert done.stderr.count("bad.mat: 'sol': NaN or Inf in 1 samples (samples 11)") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bad.mat"]


KILLER = f"""
import os, shutil, signal, sys
from pathlib import Path
{FEW_IN_A_SHARD}
import geomano_hpc.data_prep.conversion.convert as module
from geomano_hpc.data_prep.problems import problem

settings = problem("darcy", train_samples=10, test_samples=4, stride=2)
raw, folder = Path(sys.argv[1]), Path(sys.argv[2])
rename, write = Path.replace, shards.struct.pack

def attempt(out, deadly):
    '''Convert in a process that kills itself at the `deadly`-th rename or chunk. Returns whether it lived.'''
    pid = os.fork()
    if pid == 0:
        steps = 0
        def step():
            nonlocal steps
            steps += 1
            if steps == deadly:
                os.kill(os.getpid(), signal.SIGKILL)
        class Pack:
            @staticmethod
            def pack(*arguments):
                step()
                return write(*arguments)
        def replace(self, target):
            step()
            done = rename(self, target)
            step()
            return done
        Path.replace, shards.struct = replace, Pack
        folder_rename = Path.rename
        def last(self, target):
            step()
            done = folder_rename(self, target)
            step()
            return done
        Path.rename = last
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            module.convert([raw], settings, out)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

deaths = 0
for deadly in range(1, 1000, 4):  # a new conversion, killed at one of its steps
    out = folder / f"{{deadly}}.zarr"
    if attempt(out, deadly):
        break
    deaths += 1
    work = folder / f".{{deadly}}.zarr.unfinished"
    kept = {{file.relative_to(work / "store"): file.stat().st_ino for file in work.glob("store/*/c/*/0/0/0")}}
    recorded = len(list(work.glob("done/*.json")))
    assert attempt(out, 0)
    same = sum((out / name).stat().st_ino == inode for name, inode in kept.items())
    assert same >= recorded, (deadly, same, recorded)  # what was done is not done again
stubborn = folder / "stubborn.zarr"
while not attempt(stubborn, 45):  # one conversion, killed again and again
    deaths += 1
print(deaths)
"""


DEADLY_RANK = f"""
import os, signal
from geomano_hpc.data_prep import shards
steps, pack = 0, shards.struct.pack
class Pack:
    @staticmethod
    def pack(*arguments):
        global steps
        steps += 1
        if os.environ["OMPI_COMM_WORLD_RANK"] == "1" and steps == 7:  # in its second shard
            os.kill(os.getpid(), signal.SIGKILL)
        return pack(*arguments)
shards.struct = Pack
{PROGRAM}"""


@mpirun
@pytest.mark.ranks
def test_rank_that_is_killed_ends_all_and_another_number_of_ranks_goes_on(
    raw: Path, expected: Path, tmp_path: Path
) -> None:
    out = tmp_path / "store.zarr"
    assert mpi(2, ["-c", DEADLY_RANK, str(raw), str(out)]).returncode != 0
    assert not out.exists()
    recorded = list((tmp_path / ".store.zarr.unfinished").glob("done/*.json"))
    assert recorded  # the next start has something to go on from
    done = mpi(3, ["-c", PROGRAM, str(raw), str(out)])
    assert done.returncode == 0, done.stderr
    assert files_of(out) == files_of(expected)
    assert [path.name for path in tmp_path.iterdir()] == ["store.zarr"]


@pytest.mark.slow
def test_killed_at_any_point_it_goes_on_and_ends_in_the_same_bytes(raw: Path, expected: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(raw), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 30
    stores = sorted(tmp_path.iterdir())
    assert all(path.suffix == ".zarr" for path in stores)  # and nothing beside them
    wanted = files_of(expected)
    for store in stores:
        assert files_of(store) == wanted, store
    assert verify(stores[-1]) == []


@pytest.mark.slow
def test_spill_that_a_lost_machine_tore_is_made_again(raw: Path, expected: Path, tmp_path: Path) -> None:
    program = "import os, signal\nfrom geomano_hpc.data_prep.conversion import convert\n" + PROGRAM.replace(
        "convert([", "convert._write_shards = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\nconvert.convert(["
    ).replace("from geomano_hpc.data_prep.conversion.convert import convert\n", "")
    out = tmp_path / "store.zarr"
    subprocess.run([sys.executable, "-c", program, str(raw), str(out)], capture_output=True, check=False)
    (torn, _) = sorted(tmp_path.glob(".store.zarr.unfinished/spill/*.f32"))
    torn.write_bytes(torn.read_bytes()[:-1] + b"?")
    subprocess.run([sys.executable, "-c", PROGRAM, str(raw), str(out)], capture_output=True, check=True)
    assert files_of(out) == files_of(expected)


@pytest.mark.parametrize(
    ("environment", "processes"),
    [
        ({"SLURM_STEP_NUM_TASKS": "2"}, 2),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, 4),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, 3),
    ],
)
@mpirun
def test_ranks_that_mpi_does_not_see_are_an_error(environment: dict[str, str], processes: int) -> None:
    """The wrong launcher gives several worlds of size 1 and exit code 0."""
    program = "from geomano_hpc.data_prep.ranks import communicator; communicator()"
    given = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "SLURM_"))}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**given, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"the launcher started {processes} processes ({next(iter(environment))}) but MPI sees 1" in done.stderr


def test_script_of_a_job_with_several_tasks_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "8")
    assert isinstance(communicator(), SingleProcess)
