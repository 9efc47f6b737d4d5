"""Scans to measure: shapes, random inputs, and the float64 reference that judges every backend."""

from dataclasses import dataclass

import torch

from geomano_hpc.kernels import geo_scan, order_set

_ORDERS = order_set("paper")
_CHANNELS_AT_A_TIME = 32  # the reference keeps every hidden state; this bounds what it keeps


@dataclass(frozen=True)
class Shape:
    batch: int
    height: int
    width: int
    channels: int
    dstate: int = 16
    rank: int = 4
    directions: int = len(_ORDERS)

    def inputs(self, dtype: torch.dtype, seed: int = 0) -> dict[str, torch.Tensor]:
        """Random inputs with the fixed correction 0011; B, C and dt are parts of one tensor, as in the model."""
        generator = torch.Generator().manual_seed(seed)
        K, grid = self.directions, (self.batch, self.height, self.width)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        projection = normal(*grid, K, self.rank + 2 * self.dstate).to(dtype)
        dt, B, C = projection.split([self.rank, self.dstate, self.dstate], dim=-1)
        mask_K = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=dtype)
        tensors = {
            "x": normal(*grid, self.channels),
            "A": -torch.exp(normal(K, self.channels, self.dstate)),
            "D": normal(K, self.channels),
            "dt_bias": normal(K, self.channels) - 4,
            "dt_weight": normal(K, self.channels, self.rank) / self.rank**0.5,
        }
        leaves = {name: tensor.to(dtype) for name, tensor in tensors.items()} | {"dt": dt, "B": B, "C": C}
        inputs = {name: tensor.detach().requires_grad_() for name, tensor in leaves.items()}
        return inputs | {"R": mask_K[:, None, None].expand(K, self.channels, self.dstate).contiguous()}


# The scans of the two recipes, one sample each.
SHAPES = {
    "darcy": Shape(1, 85, 85, 128, rank=8),
    "navier_stokes": Shape(1, 64, 64, 512, rank=32),
}


def forward(inputs: dict[str, torch.Tensor], kind: str, backend: str) -> torch.Tensor:
    with torch.no_grad():
        return geo_scan(**inputs, orders=_ORDERS, kind=kind, backend=backend)  # type: ignore[arg-type]


def forward_backward(inputs: dict[str, torch.Tensor], kind: str, backend: str) -> dict[str, torch.Tensor]:
    """y and the gradients of half its squared norm."""
    y = geo_scan(**inputs, orders=_ORDERS, kind=kind, backend=backend)  # type: ignore[arg-type]
    leaves = {name: tensor for name, tensor in inputs.items() if tensor.requires_grad}
    grads = torch.autograd.grad(y, list(leaves.values()), y.detach())
    return {"y": y.detach(), **dict(zip(leaves, grads, strict=True))}


def judge(shape: Shape, kind: str) -> dict[str, torch.Tensor]:
    """What the reference finds in float64, some channels at a time: what the channels share is summed."""
    inputs = {name: tensor.double() for name, tensor in shape.inputs(torch.float32).items()}
    parts: list[dict[str, torch.Tensor]] = []
    for first in range(0, shape.channels, _CHANNELS_AT_A_TIME):
        e = slice(first, first + _CHANNELS_AT_A_TIME)
        part = {name: t if name in _SHARED else t[..., e] if name == "x" else t[:, e] for name, t in inputs.items()}
        leaves = {name: t.detach().requires_grad_(name != "R") for name, t in part.items()}
        parts.append(forward_backward(leaves, kind, "reference"))
    axis = {"y": -1, "x": -1}
    return {
        name: sum(part[name] for part in parts)  # type: ignore[misc]
        if name in _SHARED
        else torch.cat([part[name] for part in parts], axis.get(name, 1))
        for name in parts[0]
    }


_SHARED = ("dt", "B", "C")


def largest_error(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Relative to the largest value of each tensor; NaN if anything is."""
    errors = [(found[name].double() - e).abs().max() / e.abs().max() for name, e in expected.items()]
    return torch.stack(errors).max().item()
