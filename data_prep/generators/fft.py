"""What a pseudo-spectral solver needs of an array library beside arithmetic, so that one solver runs on several.

Here is the default, scipy on the CPU. Whoever may import torch brings another one (geomano_hpc.data.torch_fft):
data preparation itself starts without torch.
"""

from typing import Any, Protocol

import numpy as np
from scipy.fft import irfft2, rfft2

Array = Any  # an array of the library that the transforms belong to


class Transforms(Protocol):
    name: str

    def array(self, values: np.ndarray) -> Array:
        """Move to the library's own array, in double precision."""

    def numpy(self, values: Array) -> np.ndarray: ...

    def forward(self, field: Array) -> Array:
        """Real fields [..., n, n] -> half spectra [..., n, n // 2 + 1]."""

    def backward(self, spectrum: Array, n: int) -> Array:
        """Half spectra [..., n, n // 2 + 1] -> real fields [..., n, n]."""

    def largest(self, field: Array) -> np.ndarray:
        """The maximum over the last two axes."""


class ScipyTransforms:
    name = "scipy"

    def array(self, values: np.ndarray) -> np.ndarray:
        return values

    def numpy(self, values: np.ndarray) -> np.ndarray:
        return values

    def forward(self, field: np.ndarray) -> np.ndarray:
        return np.asarray(rfft2(field))

    def backward(self, spectrum: np.ndarray, n: int) -> np.ndarray:
        return np.asarray(irfft2(spectrum, s=(n, n)))

    def largest(self, field: np.ndarray) -> np.ndarray:
        return np.asarray(field.max(axis=(-2, -1)))
