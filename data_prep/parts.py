"""The unfinished work of a generation: one file for each block of samples, beside the raw file that they will become.

A part appears whole or not at all, whoever made it, so a generation that was killed goes on with the missing blocks.
Any number of ranks and workers makes the same parts.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from geomano_hpc.atomic import remove, replacing, write_json
from geomano_hpc.errors import DataError

Fields = dict[str, np.ndarray]

_DESCRIPTION = "generation.json"


@dataclass(frozen=True)
class Parts:
    out: Path
    parameters: dict[str, Any]
    samples: int
    block_length: int

    @property
    def folder(self) -> Path:
        return self.out.with_name(f".{self.out.name}.parts")

    def open(self) -> None:
        """Make the folder, or find it as another start of the same generation left it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        description = self.folder / _DESCRIPTION
        if not description.exists():
            write_json(description, self.parameters)
        found = json.loads(description.read_text(encoding="utf-8"))
        if found != self.parameters:
            raise DataError(
                f"{self.folder} holds the unfinished work of {found}, not of {self.parameters}; "
                "finish that one, or remove the folder"
            )

    def blocks(self) -> list[range]:
        starts = range(0, self.samples, self.block_length)
        return [range(start, min(start + self.block_length, self.samples)) for start in starts]

    def missing(self) -> list[range]:
        return [block for block in self.blocks() if not self._file(block).exists()]

    def write(self, block: range, fields: Fields) -> None:
        with replacing(self._file(block)) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **{key: field.astype(np.float32) for key, field in fields.items()})

    def assemble(self, constants: Fields) -> None:
        """Put all parts into the raw file, which takes its name when it is complete; then the parts go."""
        with replacing(self.out) as temporary, h5py.File(temporary, "w") as file:
            file.attrs["geomano_generation"] = json.dumps(self.parameters, sort_keys=True)
            for block in self.blocks():
                with np.load(self._file(block)) as part:
                    for key, field in part.items():
                        if block.start == 0:
                            shape = field.shape[1:]
                            file.create_dataset(key, (self.samples, *shape), "f4", chunks=(1, *shape))
                        file[key][block.start : block.stop] = field
            for key, values in constants.items():
                file[key] = values
        self.remove()

    def remove(self) -> None:
        remove(self.folder)

    def _file(self, block: range) -> Path:
        return self.folder / f"{block.start:07d}.npz"
