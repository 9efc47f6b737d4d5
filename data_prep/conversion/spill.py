"""A variable whose samples lie scattered in its file, rewritten once so that a range of samples can be read.

The variable is read block by block in the order of the file. Of every block the points that are kept are written behind
each other, as float32 (complex64) and with the samples first. A range of samples is then one piece of every block.
Memory holds a block, whatever the size of the variable; the disk holds what is kept of it for as long as the
conversion runs.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from geomano_hpc.atomic import write_json
from geomano_hpc.data_prep.readers import readable_blocks
from geomano_hpc.data_prep.readers.variable import BLOCK_BYTES, Variable


def spill(variable: Variable, axes: Sequence[str], along: str, samples: np.ndarray, stride: int, path: Path) -> None:
    """Write what is kept: these samples (ascending) and every `stride`-th point; note which have NaN or Inf in them.
    Where there is one sample only, its frames (`along` t) take the place of samples."""
    sample_axis = list(axes).index(along)
    strides = [stride if axis in ("x", "y", "z") else 1 for axis in axes]
    dtype = np.dtype(np.complex64 if variable.dtype.kind == "c" else np.float32)
    bad = np.zeros(len(samples), bool)
    index, offset, crc = [], 0, 0
    temporary = path.with_suffix(".partial")
    with temporary.open("wb") as file:
        for where, block in readable_blocks(variable):
            first, last = np.searchsorted(samples, (where[sample_axis].start, where[sample_axis].stop))
            if first == last:
                continue
            numbers = _contiguous(samples[first:last] - where[sample_axis].start)
            wanted = np.moveaxis(block, sample_axis, 0)[numbers]
            if not np.isfinite(wanted).all():
                bad[first:last] |= ~np.isfinite(wanted).all(axis=tuple(range(1, wanted.ndim)))
            picks = [_every(part, step) for part, step in zip(where, strides, strict=True)]
            with np.errstate(over="ignore"):  # what float32 cannot hold becomes Inf, which is looked for
                kept = np.ascontiguousarray(wanted[(slice(None), *_others(picks, sample_axis))], dtype=dtype)
            at = [-(-part.start // step) for part, step in zip(where, strides, strict=True)]
            if kept.size:
                index.append(
                    {
                        "offset": offset,
                        "samples": [int(first), int(last)],
                        "at": _others(at, sample_axis),
                        "shape": kept.shape,
                    }
                )
                content = kept.tobytes()
                file.write(content)
                offset += len(content)
                crc = google_crc32c.extend(crc, content)
    temporary.replace(path)
    sizes = [-(-size // step) for size, step in zip(variable.shape, strides, strict=True)]
    shape = [len(samples), *_others(sizes, sample_axis)]
    known = {"shape": shape, "dtype": dtype.str, "blocks": index, "crc32c": crc}
    # Last: a spill without it is not complete.
    write_json(path.with_suffix(".json"), {**known, "bad": np.flatnonzero(bad).tolist()})


def _others(values: list[Any], sample_axis: int) -> list[Any]:
    return values[:sample_axis] + values[sample_axis + 1 :]


def _every(part: slice, stride: int) -> slice:
    """Within a block: the points whose number in the whole variable is a multiple of the stride."""
    return slice(-part.start % stride, None, stride)


def _contiguous(numbers: np.ndarray) -> slice | np.ndarray:
    """A slice where it says the same, since it copies nothing."""
    if len(numbers) and numbers[-1] - numbers[0] + 1 == len(numbers):
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers


class Spilled:
    """What is kept of a variable, on disk: [sample, the other raw axes in their order]."""

    def __init__(self, path: Path) -> None:
        content = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        self._path, self._blocks = path, content["blocks"]
        self.shape, self.bad, self.dtype = tuple(content["shape"]), list(content["bad"]), np.dtype(content["dtype"])

    @staticmethod
    def complete(path: Path) -> bool:
        """Whether an earlier conversion left it whole. It is not flushed to the disk, so a lost machine may tear it."""
        if not path.is_file() or not path.with_suffix(".json").is_file():
            return False
        crc = 0
        with path.open("rb") as file:
            while part := file.read(BLOCK_BYTES):
                crc = google_crc32c.extend(crc, part)
        return bool(crc == json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["crc32c"])

    def read(self, start: int, stop: int) -> np.ndarray:
        values = np.empty((stop - start, *self.shape[1:]), self.dtype)
        size = self.dtype.itemsize
        with self._path.open("rb") as file:
            for block in self._blocks:
                (first, last), shape = block["samples"], block["shape"]
                low, high = max(start, first), min(stop, last)
                if low >= high:
                    continue
                count = int(np.prod(shape[1:]))
                piece = os.pread(
                    file.fileno(), (high - low) * count * size, block["offset"] + (low - first) * count * size
                )
                where = tuple(slice(at, at + size) for at, size in zip(block["at"], shape[1:], strict=True))
                values[(slice(low - start, high - start), *where)] = np.frombuffer(piece, self.dtype).reshape(
                    high - low, *shape[1:]
                )
        return values
