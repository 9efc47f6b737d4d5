"""Scans to measure: sizes, random inputs, and the float64 reference that judges every backend.

Axes: B batch, H x W grid, E channels, N dstates, K scan directions, r rank of the time step.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from geomano_hpc.kernels import geo_scan, order_set

Tensors = dict[str, torch.Tensor]

_CHANNELS_AT_A_TIME = 32  # the reference keeps every hidden state; this bounds what it keeps
_SHARED = ("dt", "B", "C")  # by all channels


@dataclass(frozen=True)
class Scan:
    """A call of the scan. `correction` and `orders` as in a recipe."""

    batch: int
    height: int
    width: int
    channels: int
    dstate: int = 16
    rank: int = 4
    kind: str = "2d"
    orders: str = "paper"
    correction: str = "0011"

    @property
    def directions(self) -> int:
        return len(order_set(self.orders))

    @property
    def learnable_correction(self) -> bool:
        """A fixed mask has no gradient."""
        return self.correction == "learnable"

    @property
    def updates(self) -> int:
        """Of hidden states in one pass."""
        return self.batch * self.height * self.width * self.channels * self.dstate * self.directions

    def inputs(self, dtype: torch.dtype, seed: int = 0, device: torch.device | str = "cpu") -> Tensors:
        """Random inputs, the same on every device; B, C and dt are parts of one tensor, as in the model."""
        generator = torch.Generator().manual_seed(seed)
        K, E, N, grid = self.directions, self.channels, self.dstate, (self.batch, self.height, self.width)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        projection = normal(*grid, K, self.rank + 2 * N).to(device, dtype)
        dt, B, C = projection.split([self.rank, N, N], dim=-1)
        tensors = {
            "x": normal(*grid, E),
            "A": -torch.exp(normal(K, E, N)),
            "D": normal(K, E),
            "dt_bias": normal(K, E) - 4,
            "dt_weight": normal(K, E, self.rank) / self.rank**0.5,
        }
        leaves = {name: tensor.to(device, dtype) for name, tensor in tensors.items()} | {"dt": dt, "B": B, "C": C}
        inputs = {name: tensor.detach().requires_grad_() for name, tensor in leaves.items()}
        if self.learnable_correction:
            return inputs | {"R": normal(K, E, N).to(device, dtype).requires_grad_()}
        mask_K = torch.tensor([float(digit) for digit in self.correction], dtype=dtype, device=device)
        return inputs | {"R": mask_K[:, None, None].expand(K, E, N).contiguous()}

    def forward(self, inputs: Tensors, backend: str) -> torch.Tensor:
        with torch.no_grad():
            return self._scan(inputs, backend)

    def forward_backward(self, inputs: Tensors, backend: str) -> Tensors:
        """y and the gradients of half its squared norm."""
        y = self._scan(inputs, backend)
        leaves = {name: tensor for name, tensor in inputs.items() if tensor.requires_grad}
        grads = torch.autograd.grad(y, list(leaves.values()), y.detach())
        return {"y": y.detach(), **dict(zip(leaves, grads, strict=True))}

    def with_graph(self, inputs: Tensors, backend: str) -> torch.Tensor:
        """y as a training computes it, ready for the backward."""
        return self._scan(inputs, backend)

    def backward(self, inputs: Tensors, backend: str) -> Callable[[], tuple[torch.Tensor, ...]]:
        """The backward alone, to be called as often as one likes."""
        y = self._scan(inputs, backend)
        leaves, dy = [tensor for tensor in inputs.values() if tensor.requires_grad], y.detach()
        return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)

    def _scan(self, inputs: Tensors, backend: str) -> torch.Tensor:
        return geo_scan(**inputs, orders=order_set(self.orders), kind=self.kind, backend=backend)  # type: ignore[arg-type]


def judge(scan: Scan) -> Tensors:
    """What the reference finds in float64, some channels at a time: what the channels share is summed."""
    inputs = {name: tensor.double() for name, tensor in scan.inputs(torch.float32).items()}
    parts: list[Tensors] = []
    for first in range(0, scan.channels, _CHANNELS_AT_A_TIME):
        e = slice(first, first + _CHANNELS_AT_A_TIME)
        part = {name: t if name in _SHARED else t[..., e] if name == "x" else t[:, e] for name, t in inputs.items()}
        leaves = {name: t.detach().requires_grad_(name != "R" or scan.learnable_correction) for name, t in part.items()}
        parts.append(replace(scan, channels=part["x"].shape[-1]).forward_backward(leaves, "reference"))
    axis = {"y": -1, "x": -1}
    return {
        name: sum(part[name] for part in parts)  # type: ignore[misc]
        if name in _SHARED
        else torch.cat([part[name] for part in parts], axis.get(name, 1))
        for name in parts[0]
    }


def largest_error(found: Tensors, expected: Tensors) -> float:
    """Relative to the largest value of each tensor; NaN if anything is."""
    errors = [(found[name].double() - e).abs().max() / e.abs().max() for name, e in expected.items()]
    return torch.stack(errors).max().item()
