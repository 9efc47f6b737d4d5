"""Speed of loading: streamed reads against plain zarr-python, samples in memory against indexing a tensor.

421 x 421 float32 samples, input and target, in random batches, from a store that `geomano data convert` wrote. Numbers
first: an engine that does not give every bit back gets no time. The files are in the page cache, since they were just
written, so what is compared is the work of a core and not a disk.
"""

import math
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from scipy.fft import idctn

from geomano_hpc.bench.measurement import Measurement
from geomano_hpc.config import DataConfig
from geomano_hpc.data import DataWait, Split, load_splits
from geomano_hpc.data.engines import ENGINES
from geomano_hpc.data.stream import InFlight, StreamedField
from geomano_hpc.data_prep.conversion.convert import convert
from geomano_hpc.data_prep.problems import problem
from geomano_hpc.data_prep.store import Store, open_store
from geomano_hpc.errors import GeomanoError
from geomano_hpc.progress import progress

GRID = 421
BATCH = 4
STEP_SECONDS = 0.02  # of the training beside which the wait for data is measured

Schedule = Sequence[torch.Tensor]
Visit = Callable[[Schedule], None]


def measure(quick: bool = False) -> list[Measurement]:
    samples, rounds = (33, 4) if quick else (193, 36)
    with tempfile.TemporaryDirectory(prefix="geomano-bench-") as folder:
        fields = make_fields(samples)
        store = _store(Path(folder), fields)
        engines = [engine for engine in ENGINES if engine != "tensorstore" or find_spec("tensorstore")]
        streamed = {engine: _load(store, loading="stream", engine=engine) for engine in engines}
        in_memory = _load(store, loading="memory")
        order = torch.randperm(samples - 1, generator=torch.Generator().manual_seed(0))
        for engine, split in {**streamed, "memory": in_memory}.items():
            check(engine, split, fields)
        schedule = order[: len(order) // BATCH * BATCH].split(BATCH)
        one_thread = _load(store, loading="stream", engine="direct", reader_threads=1)
        contenders = {"plain": _plain_zarr(store), "one thread": _visit(one_thread)}
        contenders |= {engine: _visit(split) for engine, split in streamed.items()}
        targets = {"plain": _plain_zarr(store, ("target",)), "direct": _visit_targets(streamed["direct"])}
        indexed = {"array": _index(fields), "loader": _visit(in_memory)}
        pairs, alone = _best_of(rounds, contenders, schedule), _best_of(rounds, targets, schedule)
        memory = _best_of(4 * rounds, indexed, schedule)
        wait_share = _wait_share(streamed["direct"], schedule)
    rate = len(schedule) * BATCH / pairs["plain"]
    how = f"random batches of {BATCH}, prefetched by threads, to plain zarr-python"
    results = [Measurement("plain zarr-python", rate, "samples/s", "input and target of a sample, one after the other")]
    for engine in engines:
        bar = 3.0 if engine == "direct" else None
        results.append(Measurement(f"streamed, {engine}", pairs["plain"] / pairs[engine], "x", how, bar))
    one = pairs["plain"] / pairs["one thread"]
    beside = f"share of a step of {STEP_SECONDS * 1e3:.0f} ms that leaves the cores alone, as on a GPU"
    return [
        *results,
        Measurement("streamed, direct, one thread", one, "x", how),
        Measurement("streamed, direct, target", alone["plain"] / alone["direct"], "x", f"{how}; it hardly shrinks", 3),
        Measurement("streamed, direct, waiting", wait_share, "of the time", beside),
        Measurement("in memory", memory["array"] / memory["loader"], "x", "random batches, to indexing arrays", 0.9),
    ]


def make_fields(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Fields that compress as those of Darcy flow do: a coefficient of two values, and a smooth random solution."""
    rng = np.random.default_rng(0)
    k = np.arange(GRID)
    spectrum = np.pi**2 * (k[:, None] ** 2 + k[None] ** 2) + 9
    given, target = (np.empty((samples, GRID, GRID, 1), np.float32) for _ in range(2))
    with progress("fields", samples) as advance:
        for sample in range(samples):
            noise = rng.standard_normal((2, GRID, GRID))
            given[sample, ..., 0] = np.where(idctn(noise[0] / spectrum) >= 0, 12, 3)
            target[sample, ..., 0] = idctn(noise[1] / spectrum**1.5)
            advance("")
    return given, target


def check(engine: str, split: Split, fields: tuple[np.ndarray, np.ndarray]) -> None:
    """Every sample of the split, bit by bit."""
    numbers = torch.arange(len(split))
    for samples, batch in zip(numbers.split(BATCH), split.batches(numbers.split(BATCH)), strict=True):
        for found, field in zip((batch.input_BHWC, batch.target_BHWC), fields, strict=True):
            if not np.array_equal(found.numpy(), field[samples.numpy()]):
                raise GeomanoError(f"{engine} gives wrong numbers in samples {samples.tolist()}: no speed is reported")


def _store(folder: Path, fields: tuple[np.ndarray, np.ndarray]) -> Store:
    """All samples but the last are for training."""
    raw = folder / "fields.npz"
    np.savez(raw, coeff=fields[0][..., 0], sol=fields[1][..., 0])
    convert([raw], problem("darcy", train_samples=len(fields[0]) - 1, test_samples=1, stride=1), folder / "store.zarr")
    return open_store(folder / "store.zarr")


def _load(store: Store, **keys: object) -> Split:
    return load_splits(store, DataConfig.model_validate({"store": store.path, **keys}), ("train",)).splits["train"]


def _plain_zarr(store: Store, names: Sequence[str] = ("input", "target")) -> Visit:
    """Sample by sample: a batch at once by `oindex` takes zarr-python several times longer."""
    arrays = [store.array(name) for name in names]

    def visit(schedule: Schedule) -> None:
        for batch in schedule:
            for array in arrays:
                torch.from_numpy(np.stack([np.asarray(array[sample]) for sample in batch.tolist()]))

    return visit


def _index(fields: Sequence[np.ndarray]) -> Visit:
    """Of numpy's: torch's own `tensor[batch]` takes longer."""

    def visit(schedule: Schedule) -> None:
        for batch in schedule:
            held = [torch.from_numpy(field[batch.numpy()]) for field in fields]  # until the next one is there
        del held

    return visit


def _visit_targets(split: Split) -> Visit:
    field = split.target_SHWC
    assert isinstance(field, StreamedField)

    def visit(schedule: Schedule) -> None:
        ahead: deque[InFlight] = deque()
        for batch in schedule:
            ahead.append(field.start(batch))
            if len(ahead) > field.prefetch:
                ahead.popleft().wait()
        for reads in ahead:
            reads.wait()

    return visit


def _visit(split: Split) -> Visit:
    def visit(schedule: Schedule) -> None:
        for _ in split.batches(schedule):
            pass

    return visit


def _best_of(rounds: int, contenders: dict[str, Visit], schedule: Schedule) -> dict[str, float]:
    """In turns and in short rounds: a machine that is busy for a while is so for all of them.

    Every round visits another piece of the schedule, and the time counts as if it were all of it.
    """
    piece = min(len(schedule), 8)
    pieces = [schedule[start : start + piece] for start in range(0, len(schedule) - piece + 1, piece)]
    seconds = dict.fromkeys(contenders, math.inf)
    with progress("rounds", rounds * len(contenders)) as advance:
        for number in range(rounds):
            for name, visit in contenders.items():
                started = time.perf_counter()
                visit(pieces[number % len(pieces)])
                taken = (time.perf_counter() - started) * len(schedule) / piece
                seconds[name] = min(seconds[name], taken)
                advance(name)
    return seconds


def _wait_share(split: Split, schedule: Schedule) -> float:
    wait = DataWait()
    started = time.perf_counter()
    for _ in split.batches(schedule, wait):
        time.sleep(STEP_SECONDS)
    return wait.seconds / (time.perf_counter() - started)
