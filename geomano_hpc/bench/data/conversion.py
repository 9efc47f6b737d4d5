"""Benchmark of the conversion: against scipy's loadmat and np.savez_compressed, in one run, and its peak memory.

Every conversion runs in a process of its own, which takes the time without the start of Python and reads its own peak
memory. Numbers are compared before anything is timed.
"""

import math
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np
from scipy.io import loadmat, savemat

from geomano_hpc.bench.child import ALONE, ONE_THREAD, mpi, run_in_child
from geomano_hpc.bench.measurement import Measurement
from geomano_hpc.bench.memory import peak_kib
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.data_prep.ranks import communicator
from geomano_hpc.data_prep.shards import shards_of
from geomano_hpc.data_prep.store import ARRAYS, open_store, read_manifest
from geomano_hpc.errors import GeomanoError

MOST_MIB = 1024.0
POINTS = 421  # a side
_KEYS = ("coeff", "sol")


def measure(quick: bool) -> list[Measurement]:
    """Darcy's two files at 421 x 421, every point kept; fewer samples and one round for `quick`."""
    samples, rounds, hostile_mib = (16, 1, 64) if quick else (188, 3, 1536)
    with TemporaryDirectory() as folder:
        work = Path(folder)
        files = [_matlab_file(work / f"smooth{number}.mat", samples, number) for number in (1, 2)]
        _check(files, samples, work)
        best, busy, peaks = _time(files, samples, rounds, work)
        found = [*_speeds(best, busy, samples), _matlab_memory(peaks["one"], samples), _hdf5_memory(hostile_mib, work)]
        return [*found, _file_count(files, work)]


def darcy_like(samples: int, points: int, seed: int) -> dict[str, np.ndarray]:
    """Fields that compress as Darcy's do: a coefficient of 12 and 3, a smooth solution with all its digits."""
    rng = np.random.default_rng(seed)
    modes = np.arange(1, 13)
    sines = np.sin(math.pi * modes[:, None] * np.linspace(0, 1, points))
    falloff = 1.0 / (modes[:, None] ** 2 + modes**2)
    rough, smooth = (rng.standard_normal((samples, 12, 12)) * falloff for _ in range(2))
    return {
        "coeff": np.where(np.einsum("skl,kx,ly->sxy", rough, sines, sines, optimize=True) > 0, 12.0, 3.0),
        "sol": np.einsum("skl,kx,ly->sxy", smooth * falloff, sines, sines, optimize=True) * 0.01,
    }


def _matlab_file(path: Path, samples: int, seed: int) -> Path:
    savemat(path, darcy_like(samples, POINTS, seed), do_compression=True)
    return path


def _check(files: list[Path], samples: int, work: Path) -> None:
    convert(files, problem("darcy", train_samples=samples, test_samples=samples, stride=1), work / "check.zarr")
    store = open_store(work / "check.zarr")
    for number, path in enumerate(files):
        raw = loadmat(path)
        for name, key in zip(ARRAYS, _KEYS, strict=True):
            values = store.read(name, slice(number * samples, (number + 1) * samples))[..., 0]
            if not np.array_equal(values, raw[key].astype(np.float32)):
                raise GeomanoError(f"the conversion of {key!r} is wrong: no speed is reported")
    shutil.rmtree(work / "check.zarr")


def _time(
    files: list[Path], samples: int, rounds: int, work: Path
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Best seconds, best CPU seconds of the busiest rank and largest peak memory of each way.

    They run in turns, so that a busy machine is so for all of them.
    """
    ways = {"serial": ("serial", 1), "serial_float32": ("serial_float32", 1), "one": ("convert", 1)}
    if shutil.which("mpirun"):
        ways["two"] = ("convert", 2)
    best, busy, peaks = dict.fromkeys(ways, math.inf), dict.fromkeys(ways, math.inf), dict.fromkeys(ways, 0.0)
    for _ in range(rounds):
        for name, (what, ranks) in ways.items():
            seconds, cpu, peak = _child(what, samples, files, work / "out", ranks)
            best[name], busy[name], peaks[name] = min(best[name], seconds), min(busy[name], cpu), max(peaks[name], peak)
    return best, busy, peaks


def _child(what: str, samples: int, files: list[Path], out: Path, ranks: int = 1) -> tuple[float, float, float]:
    """Seconds, CPU seconds of the busiest rank and peak MiB."""
    launcher, settings = mpi(ranks) if ranks > 1 else (ALONE, {})
    paths = [str(path) for path in files]
    environment = {**ONE_THREAD, **settings}
    answer = run_in_child(time_conversion, what, samples, paths, str(out), launcher=launcher, environment=environment)
    return float(answer["seconds"]), float(answer["cpu"]), float(answer["peak_mib"])


def _speeds(best: dict[str, float], busy: dict[str, float], samples: int) -> list[Measurement]:
    size = f"2 files of {samples} samples, {POINTS} x {POINTS}"
    found = [
        Measurement(
            "convert, 1 rank",
            best["serial"] / best["one"],
            "x",
            f"over serial loadmat + np.savez_compressed, {size}",
            at_least=1.5,
        ),
        Measurement(
            "convert, 1 rank, float32",
            best["serial_float32"] / best["one"],
            "x",
            "over serial loadmat + astype(float32) + np.savez_compressed",
        ),
    ]
    if "two" in best:
        found += [
            Measurement(
                "convert, 2 ranks",
                best["serial"] / best["two"],
                "x",
                "over serial loadmat + np.savez_compressed",
                at_least=1.8,
            ),
            Measurement("convert, 2 ranks over 1", best["one"] / best["two"], "x", "the same files", at_least=1.8),
            Measurement(
                "convert, 2 ranks over 1, CPU",
                busy["one"] / busy["two"],
                "x",
                "CPU seconds of one rank over those of the busier of two: what idle cores would show",
            ),
        ]
    return found


def _matlab_memory(peak: float, samples: int) -> Measurement:
    variable = samples * POINTS * POINTS * 8 / 2**20
    return Measurement(
        "memory, MATLAB v5",
        peak,
        "MiB",
        f"peak of the process; one variable has {variable:.0f} MiB",
        at_most=variable + MOST_MIB,
    )


def _hdf5_memory(mib: int, work: Path) -> Measurement:
    """MATLAB v7.3 writes the samples as the last axis, so that every chunk holds a bit of all of them."""
    points = 256
    samples = mib * 2**20 // (8 * points * points)
    path = work / "v73.mat"
    with h5py.File(path, "w") as file:
        for seed, key in enumerate(_KEYS):
            field = file.create_dataset(key, (points, points, samples), "f8", chunks=(4, points, min(samples, 256)))
            field.attrs["MATLAB_class"] = np.bytes_("double")
            rows = np.random.default_rng(seed).standard_normal((4, points, samples))
            for start in range(0, points if key == "coeff" else 8, 4):  # the other variable costs the disk little
                field[start : start + 4] = rows + start
    size = path.stat().st_size / 2**20
    _, _, peak = _child("convert", samples // 2, [path], work / "v73.zarr")
    path.unlink()
    return Measurement(
        "memory, HDF5", peak, "MiB", f"peak of the process for a v7.3 file of {size:.0f} MiB", at_most=MOST_MIB
    )


def _file_count(files: list[Path], work: Path) -> Measurement:
    """The whole benchmark is not made here: its shards are counted, and the other files of a small store."""
    convert(files, problem("darcy", train_samples=2, test_samples=2), work / "small.zarr")
    others = sum(file.is_file() for file in (work / "small.zarr").rglob("*")) - len(read_manifest(work / "small.zarr"))
    shards = shards_of(dict.fromkeys(ARRAYS, (1200, 421, 421, 1)))
    return Measurement(
        "files", len(shards) + others, "files", "of the whole Darcy benchmark, 1200 samples, 421 x 421", at_most=100
    )


def _serial(files: list[Path], out: Path, dtype: type | None) -> None:
    content = {}
    for number, path in enumerate(files):
        raw = loadmat(path)
        content.update({f"{key}{number}": raw[key] if dtype is None else raw[key].astype(dtype) for key in _KEYS})
    np.savez_compressed(out, **content)


def time_conversion(what: str, samples: int, paths: list[str], to: str) -> dict[str, float] | None:
    """What the first rank measured."""
    world = communicator()
    files, out = [Path(path) for path in paths], Path(to)
    world.allgather(None)
    start, start_cpu = time.perf_counter(), time.process_time()
    if what == "convert":
        convert(files, problem("darcy", stride=1, train_samples=samples, test_samples=samples), out, world)
    else:
        _serial(files, out.with_suffix(".npz"), np.float32 if what == "serial_float32" else None)
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    measured = world.allgather((seconds, cpu, peak_kib() / 1024))
    if world.rank > 0:
        return None
    shutil.rmtree(out, ignore_errors=True)
    slowest, busiest, largest = (max(one) for one in zip(*measured, strict=True))
    return {"seconds": slowest, "cpu": busiest, "peak_mib": largest}
