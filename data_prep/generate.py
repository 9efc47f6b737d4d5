"""Make a raw data set with the generators: one HDF5 file in the layout of the public benchmark files."""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from geomano_hpc.atomic import replacing
from geomano_hpc.data_prep import darcy, navier_stokes
from geomano_hpc.errors import DataError
from geomano_hpc.progress import progress


@dataclass(frozen=True)
class Generation:
    """Everything that decides the bits of a generated data set."""

    problem: str
    samples: int
    grid: int
    seed: int = 0
    viscosity: float = 1e-5  # Navier-Stokes only

    def parameters(self) -> dict[str, Any]:
        parameters = asdict(self)
        if self.problem != "navier_stokes":
            del parameters["viscosity"]
        return parameters


def make_sample(generation: Generation, index: int) -> dict[str, np.ndarray]:
    if generation.problem == "darcy":
        coefficient, solution = darcy.sample(generation.seed, index, generation.grid)
        return {"coeff": coefficient, "sol": solution}
    initial, frames = navier_stokes.sample(generation.seed, index, generation.grid, generation.viscosity)
    return {"a": initial, "u": frames}


def generate(generation: Generation, out: Path, workers: int = 0) -> bool:
    """Write the raw file. Returns False where the same data set is already there; another one there is an error."""
    if out.exists():
        found = provenance(out)
        if found == generation.parameters():
            return False
        raise DataError(
            f"{out} exists and was made with {found}, not with {generation.parameters()}; "
            "remove it or choose another name"
        )
    with (
        replacing(out) as temporary,
        h5py.File(temporary, "w") as file,
        progress(f"generate {generation.problem}", generation.samples) as advance,
    ):
        file.attrs["geomano_generation"] = json.dumps(generation.parameters(), sort_keys=True)
        for index, sample in enumerate(_samples(generation, workers or os.cpu_count() or 1)):
            for key, field in sample.items():
                if index == 0:
                    file.create_dataset(key, (generation.samples, *field.shape), "f4", chunks=(1, *field.shape))
                file[key][index] = field
            advance("")
        if generation.problem == "navier_stokes":
            file["t"] = np.arange(1.0, file["u"].shape[-1] + 1)
    return True


def provenance(path: Path) -> dict[str, Any] | None:
    """The parameters that made a generated raw file, or None where it is somebody else's file."""
    if not h5py.is_hdf5(path):
        return None
    with h5py.File(path, "r") as file:
        text = file.attrs.get("geomano_generation")
    return None if text is None else dict(json.loads(text))


def _samples(generation: Generation, workers: int) -> Iterator[dict[str, np.ndarray]]:
    make: Callable[[int], dict[str, np.ndarray]] = partial(make_sample, generation)
    if workers == 1 or generation.samples < 8:
        yield from map(make, range(generation.samples))
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(make, range(generation.samples), chunksize=2)
