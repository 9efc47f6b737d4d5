"""What a pseudo-spectral solver needs of an array library beside arithmetic, so that one solver runs on several.

Here is the default, scipy on the CPU. Whoever may import torch brings another one (geomano_hpc.data.torch_fft):
data preparation itself starts without torch.
"""

from typing import Any, Protocol

import numpy as np
import scipy  # its parts load when they are used

Array = Any  # an array of the library that the transforms belong to


class Fft(Protocol):
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


class ScipyFft:
    name = "scipy"

    def array(self, values: np.ndarray) -> np.ndarray:
        return values

    def numpy(self, values: np.ndarray) -> np.ndarray:
        return values

    def forward(self, field: np.ndarray) -> np.ndarray:
        return np.asarray(scipy.fft.rfft2(field))

    def backward(self, spectrum: np.ndarray, n: int) -> np.ndarray:
        return np.asarray(scipy.fft.irfft2(spectrum, s=(n, n)))

    def largest(self, field: np.ndarray) -> np.ndarray:
        return np.asarray(field.max(axis=(-2, -1)))
