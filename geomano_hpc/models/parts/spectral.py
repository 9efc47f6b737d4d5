"""A few Fourier modes of each channel, weighted: the smooth part of an operator on a periodic domain. (Ours.)

Axes: B batch, h x w grid, E channels, m modes.
"""

import torch
from torch import nn


class SpectralBranch(nn.Module):
    """y = F^-1 (W F x) with a complex W for each channel and each mode of at most `modes` - 1 waves along an axis.

    A wave is one of the domain, and F the mean over its points, so the branch is the same on every grid that can hold
    the modes; on a coarser grid those that it can hold are taken.
    """

    def __init__(self, E: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        # Real and imaginary parts side by side: optimisers and engines know real numbers only.
        self.weights = nn.Parameter(torch.randn(2 * modes - 1, modes, E, 2) / (2 * modes))

    def forward(self, x_BhwE: torch.Tensor) -> torch.Tensor:
        _, h, w, _ = x_BhwE.shape
        with torch.autocast(x_BhwE.device.type, enabled=False):  # transforms are in float32 at least
            x = x_BhwE if x_BhwE.dtype == torch.float64 else x_BhwE.float()
            found = torch.fft.rfft2(x, dim=(1, 2), norm="forward")
            down, along = min(self.modes, (h + 1) // 2), min(self.modes, (w + 1) // 2)
            weights = torch.view_as_complex(self.weights)
            # Frequencies 0, 1, ..., -2, -1 along H, as the transform has them.
            kept = torch.cat([weights[:down, :along], weights[weights.shape[0] - down + 1 :, :along]])
            modes = torch.cat([found[:, :down, :along], found[:, h - down + 1 :, :along]], dim=1) * kept
            out = torch.zeros_like(found)
            out[:, :down, :along] = modes[:, :down]
            out[:, h - down + 1 :, :along] = modes[:, down:]
            return torch.fft.irfft2(out, s=(h, w), dim=(1, 2), norm="forward").to(x_BhwE.dtype)
