"""Make a raw data set with the generators: one HDF5 file in the layout of the public benchmark files.

Several ranks, or several processes of one rank, each make their share of the samples without a word to each other;
rank 0 then puts the parts together. Sample i, and so the file, has the same bits for any number of them.
"""

import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np

from geomano_hpc.ctrl_c import children_ignore_ctrl_c
from geomano_hpc.data_prep.generators import burgers, darcy, navier_stokes
from geomano_hpc.data_prep.generators.fft import Fft
from geomano_hpc.data_prep.parts import Fields, Parts
from geomano_hpc.data_prep.ranks import Communicator, SingleProcess
from geomano_hpc.errors import ConfigError, DataError
from geomano_hpc.progress import progress

VERSIONS = {"darcy": darcy.VERSION, "navier_stokes": navier_stokes.VERSION, "burgers": burgers.VERSION}
VISCOSITIES = {"navier_stokes": 1e-5, "burgers": 0.01}
BATCH = 16  # samples that torch solves at once, and at most so many are lost with a killed rank


@dataclass(frozen=True)
class Generation:
    """Everything that decides the bits of a generated data set."""

    problem: str
    samples: int
    grid: int  # points per side in the file
    seed: int = 0
    viscosity: float | None = None  # None: that of VISCOSITIES. Darcy flow has none.
    solve_grid: int | None = None  # points per side that the equation is solved on: a multiple of `grid`
    transforms: str = "scipy"

    def __post_init__(self) -> None:
        if self.problem not in VERSIONS:
            raise ConfigError(f"--problem {self.problem!r} is not known; known problems: {', '.join(VERSIONS)}")
        if self.solve_grid is not None and self.solve_grid != self.grid:
            if self.problem == "darcy":
                raise ConfigError("darcy is solved on the grid it is kept on, at cell centres: leave out --solve-grid")
            if self.solve_grid % self.grid:
                raise ConfigError(f"--solve-grid {self.solve_grid} is not a multiple of --grid {self.grid}")
        if self.transforms != "scipy" and self.problem != "navier_stokes":
            raise ConfigError(f"{self.problem} is solved on the CPU: leave out --device")

    @property
    def nu(self) -> float:
        return VISCOSITIES[self.problem] if self.viscosity is None else self.viscosity

    def parameters(self) -> dict[str, Any]:
        names = ("problem", "samples", "grid", "seed")
        parameters = {name: getattr(self, name) for name in names} | {"generator": VERSIONS[self.problem]}
        if self.problem in VISCOSITIES:
            parameters["viscosity"] = self.nu
        if self.solve_grid not in (None, self.grid):
            parameters["solve_grid"] = self.solve_grid
        if self.transforms != "scipy":  # other bits, if only in the last digits
            parameters["transforms"] = self.transforms
        return parameters


def make_samples(generation: Generation, indices: Sequence[int], transforms: Fft | None = None) -> Fields:
    """Some samples [sample, ...] under the keys of the public files. Transforms of one's own solve them all at once."""
    if generation.problem == "navier_stokes" and transforms is not None:
        initial, frames = _navier_stokes(generation, indices, transforms)
        return {"a": initial, "u": frames}
    pairs = [_pair(generation, index) for index in indices]
    keys = ("coeff", "sol") if generation.problem == "darcy" else ("a", "u")
    return {key: np.stack([pair[place] for pair in pairs]) for place, key in enumerate(keys)}


def _pair(generation: Generation, index: int) -> tuple[np.ndarray, np.ndarray]:
    seed, solve_grid = generation.seed, generation.solve_grid or generation.grid
    if generation.problem == "darcy":
        return darcy.sample(seed, index, solve_grid)
    if generation.problem == "burgers":
        return burgers.sample(seed, index, solve_grid, generation.nu, solve_grid // generation.grid)
    initial, frames = _navier_stokes(generation, [index])
    return initial[0], frames[0]


def _navier_stokes(
    generation: Generation, indices: Sequence[int], transforms: Fft | None = None
) -> tuple[np.ndarray, np.ndarray]:
    n = generation.solve_grid or generation.grid
    return navier_stokes.samples(
        generation.seed, indices, n, generation.nu, keep_every=n // generation.grid, transforms=transforms
    )


def generate(
    generation: Generation,
    out: Path,
    workers: int = 0,
    world: Communicator | None = None,
    transforms: Fft | None = None,
) -> bool:
    """Write the raw file. Returns False where the same data set is already there; another one there is an error.

    workers 0: as many processes as this one has cores where it is the only rank, else one. Transforms other than
    scipy's solve in this process, a block of samples at once.
    """
    assert generation.transforms == (transforms.name if transforms else "scipy")
    world = world or SingleProcess()
    parts = unfinished(generation, out)
    missing = world.bcast(_missing(parts) if world.rank == 0 else None)
    if missing is None:
        return False
    mine = missing[world.rank :: world.size]
    where = f", rank 0 of {world.size}" if world.size > 1 else ""
    title = f"generate {generation.problem}{where}"
    with progress(title, sum(map(len, mine)), shown=world.rank == 0) as advance:
        for block in _made(generation, parts, mine, workers, world, transforms):
            for _ in block:
                advance("")
    world.allgather(None)  # every part is there
    if world.rank == 0:
        last = {"t": np.arange(1.0, navier_stokes.FRAMES + 1)} if generation.problem == "navier_stokes" else {}
        parts.assemble(last)
    world.allgather(None)  # nobody returns before the file has its name
    return True


def unfinished(generation: Generation, out: Path) -> Parts:
    """Where the work on a file is kept. Its blocks follow from the generation, and are many, to be shared evenly."""
    length = BATCH if generation.transforms != "scipy" else max(1, min(BATCH, generation.samples // 256))
    return Parts(out, generation.parameters(), generation.samples, length)


def _missing(parts: Parts) -> list[range] | None:
    """The blocks still to be made; None where the file is there."""
    if parts.out.exists():
        found = provenance(parts.out)
        if found != parts.parameters:
            raise DataError(
                f"{parts.out} exists and was made with {found}, not with {parts.parameters}; "
                "remove it or choose another name"
            )
        parts.remove()  # where the last start was killed between its last two steps
        return None
    parts.open()
    return parts.missing()


def provenance(path: Path) -> dict[str, Any] | None:
    """The parameters that made a generated raw file, or None where it is somebody else's file."""
    if not h5py.is_hdf5(path):
        return None
    with h5py.File(path, "r") as file:
        text = file.attrs.get("geomano_generation")
    return None if text is None else dict(json.loads(text))


def _make_block(generation: Generation, parts: Parts, block: range, transforms: Fft | None = None) -> range:
    parts.write(block, make_samples(generation, block, transforms))
    return block


def _made(
    generation: Generation,
    parts: Parts,
    blocks: list[range],
    workers: int,
    world: Communicator,
    transforms: Fft | None,
) -> Iterator[range]:
    """Make blocks, here or in processes of our own, and yield each when it is written."""
    workers = workers or (len(os.sched_getaffinity(0)) if world.size == 1 else 1)
    if transforms is not None or workers == 1 or sum(map(len, blocks)) < 8:
        for block in blocks:
            yield _make_block(generation, parts, block, transforms)
        return
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=fresh, initializer=_end_with_parent) as pool:
        with children_ignore_ctrl_c(), _children_do_not_import_main():
            made = [pool.submit(_make_block, generation, parts, block) for block in blocks]
        try:
            for future in made:
                yield future.result()
        except (KeyboardInterrupt, GeneratorExit):  # at once: blocks appear whole or not at all
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise
        except BrokenProcessPool as error:
            raise DataError(
                f"a process that makes {parts.out} died (out of memory, or killed); start again, and only what is "
                "missing is made"
            ) from error
        except Exception:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_MAIN_IS_HIDDEN = threading.Lock()


@contextmanager
def _children_do_not_import_main() -> Iterator[None]:
    """Processes that are spawned in this block do not import the script that started them, as Python has them do.

    They need nothing of it, and a script without a guard would do all its work again in each of them.
    """
    with _MAIN_IS_HIDDEN:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # without a file or a name to import it by
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
