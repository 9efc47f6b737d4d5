"""A few Fourier modes of each channel, weighted: the smooth part of an operator on a periodic domain. (Ours.)

Few modes are wanted of many points, so a transform is a product with the waves along each axis, and no fast one: real
numbers only, and no array of all modes. Axes: B batch, h x w grid, E channels, m and n modes along H and W.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from geomano_hpc.kernels.autocast import without_autocast


class SpectralBranch(nn.Module):
    """y = F^-1 (W F x) with a complex W for each channel and each mode of at most `modes` - 1 waves along an axis.

    A wave is one of the domain, and F the mean over its points, so the branch is the same on every grid that can hold
    the modes; on a coarser grid those that it can hold are taken.
    """

    def __init__(self, E: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        # Modes 0, 1, ..., -2, -1 along H and 0, 1, ... along W; real and imaginary parts side by side, since optimisers
        # and engines know real numbers only.
        self.weights = nn.Parameter(torch.randn(2 * modes - 1, modes, E, 2) / (2 * modes))

    def forward(self, x_BhwE: torch.Tensor) -> torch.Tensor:
        B, h, w, E = x_BhwE.shape
        m, n = _held(self.modes, h), _held(self.modes, w)
        with without_autocast(x_BhwE.device.type):  # transforms are in float32 at least
            x = x_BhwE if x_BhwE.dtype == torch.float64 else x_BhwE.float()
            down, along = waves_down(h, m, x), waves_along(w, n, x)
            of_columns = torch.bmm(down.there.expand(B, -1, -1), x.reshape(B, h, w * E))
            found = torch.bmm(along.there.expand(B * m, -1, -1), of_columns.view(B * m, 2 * w, E))
            # The way back takes real and imaginary parts of W apart, and multiplies the latter by i.
            weighted = found.view(B, m, 1, 2, 2, n, E) * self._weights_of(m, n)
            of_columns = torch.bmm(along.back.expand(B * m, -1, -1), weighted.view(B * m, 8 * n, E))
            # One step after the other: so torch.export can follow them for any w.
            by_row = of_columns.view(B, m, 2, w, E).flatten(1, 2).flatten(2)
            y = torch.bmm(down.back.expand(B, -1, -1), by_row)
            return y.view(B, h, w, E).to(x_BhwE.dtype)

    def _weights_of(self, m: int, n: int) -> torch.Tensor:
        """[m, real and imaginary part, of k and of -k waves along H, 1, n, E]"""
        first, last = self.weights[:m, :n], self.weights[2 * self.modes - m :, :n]
        both = torch.stack([first, torch.cat([first[:1], last.flip(0)])], dim=1)
        return both.movedim(-1, 1).contiguous().unsqueeze(3)


def _held(modes: int, points: int) -> int:
    """How many of the modes a grid can hold. Exported for any grid all are computed: those too many are zero."""
    return min(modes, (points + 1) // 2) if isinstance(points, int) else modes


class Waves(NamedTuple):
    """Matrices of the transform along an axis, and of its inverse."""

    there: torch.Tensor
    back: torch.Tensor


def waves_down(points: int, modes: int, like: torch.Tensor) -> Waves:
    """There: cosines and sines of each number of waves [2 m, h]. Back: [h, 2 m]; of 0 waves k and -k are the same."""
    return _kept(_waves_down, points, modes, like)


def waves_along(points: int, modes: int, like: torch.Tensor) -> Waves:
    """There: from cosine c and sine s along H of all points [2 w] to real and imaginary part of the modes of k and -k
    waves along H, which have c - i s and c + i s [4 n]. Back: real parts only; first of modes, then of i times modes
    [2 w, 8 n]."""
    return _kept(_waves_along, points, modes, like)


def _waves_down(points: int, modes: int, device: torch.device) -> Waves:
    both = torch.stack(_cosines_and_sines(points, modes, device), dim=1)
    once = torch.ones(modes, dtype=both.dtype, device=device)
    once[0] = 0.5
    return Waves(both.flatten(0, 1) / points, (both * once[:, None, None]).flatten(0, 1).t())


def _waves_along(points: int, modes: int, device: torch.device) -> Waves:
    c, s = _cosines_and_sines(points, modes, device)
    rows = torch.stack([c, -s, -s, -c, c, s, -s, c]).view(2, 2, 2, modes, points)  # +-k, real or imaginary, c or s
    rows = rows.transpose(2, 3)
    turned = torch.stack([rows[:, 1], -rows[:, 0]], dim=1)
    twice = torch.full((modes, 1, 1), 2.0, dtype=c.dtype, device=device)  # for the waves the other way round, too
    twice[0] = 1.0
    back = torch.stack([rows, turned]) * twice
    return Waves(rows.reshape(4 * modes, 2 * points) / points, back.reshape(8 * modes, 2 * points).t())


def _cosines_and_sines(points: int, modes: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """[modes, points] each, zero where the points cannot tell the waves from fewer ones."""
    number = torch.arange(modes, dtype=torch.float64, device=device)[:, None]
    angles = 2 * math.pi / points * (number * torch.arange(points, dtype=torch.float64, device=device))
    is_held = (2 * number < points).double()
    return angles.cos() * is_held, angles.sin() * is_held


_KEPT: dict[tuple[object, ...], Waves] = {}


def _kept(make: Callable[[int, int, torch.device], Waves], points: int, modes: int, like: torch.Tensor) -> Waves:
    """Made once for the precision and the device of a tensor. A graph that is being traced makes its own."""

    def made() -> Waves:
        with torch.inference_mode(False):  # a training may want them next
            return Waves(*(one.to(like.dtype).contiguous() for one in make(points, modes, like.device)))

    if torch.compiler.is_compiling() or type(like) is not torch.Tensor:
        return made()
    key = (make, points, modes, like.dtype, like.device)
    if key not in _KEPT:
        if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
            return made()  # tensors that may end with the one who looks on
        _KEPT[key] = made()
    return _KEPT[key]
