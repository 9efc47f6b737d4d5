"""Raw files as data preparation reads them."""

from pathlib import Path

import numpy as np

from geomano_hpc.data_prep.readers import open_variable, reading
from geomano_hpc.data_prep.readers.variable import whole


def read_field(path: Path, key: str) -> np.ndarray:
    """A whole variable in memory."""
    variable = open_variable(path, key)
    with reading(path, repr(key)):
        return whole(variable)
