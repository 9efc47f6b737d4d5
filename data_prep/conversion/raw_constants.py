"""Numbers that are constant for a sample, such as a viscosity: of the command line, of variables, of attributes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from geomano_hpc.data_prep.conversion.sources import Constant
from geomano_hpc.data_prep.readers import open_variable
from geomano_hpc.data_prep.readers.variable import whole
from geomano_hpc.errors import DataError

_MOST_VALUES = 1 << 24


def read_constants(constants: Sequence[Constant], files: Sequence[Path], counts: Sequence[int]) -> np.ndarray:
    """[sample of all files, constant] in float32."""
    columns = [np.concatenate([_values(one, files, n, count) for n, count in enumerate(counts)]) for one in constants]
    return np.stack(columns, axis=1) if columns else np.zeros((sum(counts), 0), np.float32)


def _values(constant: Constant, files: Sequence[Path], number: int, samples: int) -> np.ndarray:
    if constant.value is not None:
        return np.full(samples, constant.value, np.float32)
    if not files:
        raise DataError(f"--constant {constant.name}={constant.key}: no raw file is given to read it from")
    variable = open_variable(files[number], constant.key)
    where = f"{variable.path}: {variable.key!r}"
    size = int(np.prod(variable.shape))
    if size not in (1, samples) or size > _MOST_VALUES or variable.dtype.kind == "c":
        raise DataError(
            f"{where}: has shape {variable.shape}; a constant is one real number, or one for each of {samples} samples"
        )
    values = np.broadcast_to(np.asarray(whole(variable), np.float32).reshape(-1), samples)
    if not np.isfinite(values).all():
        raise DataError(f"{where}: NaN or Inf in sample {int(np.flatnonzero(~np.isfinite(values))[0])}")
    return values
