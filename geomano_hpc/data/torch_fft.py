"""The Fourier transforms of the flow solver with torch, so that a batch of samples is solved at once on a GPU."""

import numpy as np
import torch

from geomano_hpc.errors import BackendError


class TorchFft:
    """See geomano_hpc.data_prep.generators.fft.Fft. Double precision, as everywhere in the generators.

    With several ranks on a machine, "cuda" is another GPU for each, as far as they go.
    """

    def __init__(self, device: str, rank: int = 0) -> None:
        if device == "cuda" and torch.cuda.device_count():
            device = f"cuda:{rank % torch.cuda.device_count()}"
        try:
            self.device = torch.device(device)
            torch.zeros(1, device=self.device)
        except (RuntimeError, AssertionError) as error:  # torch without CUDA fails with an assertion
            reason = str(error).splitlines()[0]
            raise BackendError(
                f"--device {device} cannot be used here ({reason}); leave it out to solve with scipy on the CPU"
            ) from error
        self.name = f"torch-{self.device.type}"

    def array(self, values: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(values, device=self.device)

    def numpy(self, values: torch.Tensor) -> np.ndarray:
        return values.cpu().numpy()

    def forward(self, field: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft2(field)

    def backward(self, spectrum: torch.Tensor, n: int) -> torch.Tensor:
        return torch.fft.irfft2(spectrum, s=(n, n))

    def largest(self, field: torch.Tensor) -> np.ndarray:
        return field.amax(dim=(-2, -1)).cpu().numpy()
