"""What stands between the matrix products of a GeoMaNO layer: convolution with activation, norm, gate or both, GELU.

Each is one operator of torch that a kernel computes in one pass over memory, forwards and backwards, keeping its inputs
only: in C++ on a CPU, in Triton on a GPU. What a kernel does not take is plain torch, which computes the same: on a CPU
anything but float32, channels not a multiple of 16, and autocast; on a GPU float64 and more than 4096 channels; on
both more than 13 taps along an axis, forward-mode derivatives, a model that torch.compile fuses itself, and another
scan backend.

Under autocast on a GPU activations stay in its precision, as they are for the matrix products before and after, and
parameters in float32. torch's own norm would give float32 there, which the next matrix product rounds: the same
numbers.

Axes: B batch, H x W grid, E channels.
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from geomano_hpc.kernels import dense_operators as operators
from geomano_hpc.kernels.autocast import autocast_dtype
from geomano_hpc.kernels.backends import choose_backend
from geomano_hpc.kernels.cpu.scan import LANES
from geomano_hpc.kernels.inputs import has_tangent

MOST_CHANNELS = 4096  # in Triton: a row of a norm lies in the registers of one program
MOST_TAPS = 13  # along an axis: 7 that are two points apart
_IN_TRITON = (torch.float32, torch.bfloat16, torch.float16)


def conv_silu(z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """SiLU(depthwise 3 x 3 convolution of z + bias), zeros around the grid. z [B, H, W, E], weight [E, 1, 3, 3]."""
    E = z.shape[-1]
    fits = z.dim() == 4 and weight.shape == (E, 1, 3, 3) and bias.shape == (E,)  # else torch says what is wrong
    kernel = _kernel(backend, [z], [weight, bias]) if fits else None
    if kernel is not None:
        dtype = autocast_dtype(z.device.type)
        return _run("conv_silu", kernel, [z if dtype is None else z.to(dtype), weight, bias])
    return F.silu(F.conv2d(z.movedim(-1, 1), weight, bias, padding=1, groups=E).movedim(1, -1))


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"silu": F.silu, "gelu": F.gelu, "none": lambda u: u}
_FUSED = ("silu", "gelu")  # in kernels


def depthwise_conv(
    z: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    activation: str = "silu",
    wrap: tuple[bool, bool] = (False, False),
    backend: str = "auto",
) -> torch.Tensor:
    """activation(depthwise convolution of z + bias). z [B, H, W, E], weight [E, 1, p, q] with p and q odd.

    activation: "silu", "gelu" or "none". wrap: along H, along W the grid goes on at its other end; else zeros are
    around it.

    Kernels take up to 13 taps along an axis, which is 7 taps two points apart: each width is compiled. More are torch's
    convolution, the same answer, and so is a convolution without an activation.
    """
    if activation == "silu" and weight.shape[-2:] == (3, 3) and not any(wrap):
        return conv_silu(z, weight, bias, backend)
    E, taps = z.shape[-1], weight.shape[-2:]
    fits = z.dim() == weight.dim() == 4 and weight.shape[:2] == (E, 1) and bias.shape == (E,)
    takes = fits and all(size % 2 == 1 and size <= MOST_TAPS for size in taps) and activation in _FUSED
    kernel = _kernel(backend, [z], [weight, bias]) if takes else None
    if kernel is not None:
        dtype = autocast_dtype(z.device.type)
        tensors = [z if dtype is None else z.to(dtype), weight, bias]
        return _run("depthwise_conv", kernel, tensors, activation, list(wrap))
    reach = [size // 2 for size in taps]
    for axis in (1, 2):
        if wrap[axis - 1]:
            z = _continued(z, axis, reach[axis - 1])
            reach[axis - 1] = 0
    convolved = F.conv2d(z.movedim(-1, 1), weight, bias, padding=reach, groups=E)
    return _ACTIVATIONS[activation](convolved.movedim(1, -1))


def _continued(z: torch.Tensor, axis: int, reach: int) -> torch.Tensor:
    """With so many points more at both ends of a ring, however few it has."""
    points = z.shape[axis]
    return z.index_select(axis, torch.arange(-reach, points + reach, device=z.device) % points)


def norm_gate(
    y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float, backend: str = "auto"
) -> torch.Tensor:
    """SiLU(LayerNorm(y)) * SiLU(z), all of them [..., E]."""
    fits = y.shape == z.shape and weight.shape == bias.shape == y.shape[-1:]
    kernel = _kernel(backend, [y, z], [weight, bias]) if fits else None
    if kernel is not None:
        return _run("norm_gate", kernel, [y, z, weight, bias], epsilon)
    return F.silu(F.layer_norm(y, weight.shape, weight, bias, epsilon)) * F.silu(z)


def gate(y: torch.Tensor, z: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """y * SiLU(z), both of them [..., E]."""
    kernel = _kernel(backend, [y, z]) if y.shape == z.shape else None
    return y * F.silu(z) if kernel is None else _run("gate", kernel, [y, z])


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float, backend: str = "auto"
) -> torch.Tensor:
    """LayerNorm of x [..., E] in front of a matrix product, whose precision the result has under autocast."""
    if weight.shape == bias.shape == x.shape[-1:] and _kernel(backend, [x], [weight, bias]) == "triton":
        dtype = autocast_dtype(x.device.type) or x.dtype
        return _run("layer_norm", "triton", [x, weight, bias], epsilon, dtype)
    return F.layer_norm(x, weight.shape, weight, bias, epsilon)


def gelu(x: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """x Phi(x), with Phi the normal distribution."""
    kernel = _kernel(backend, [x])
    return F.gelu(x) if kernel is None else _run("gelu", kernel, [x])


def negative_exp(x: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """-exp(x): A of the scan from A_log. One launch on a GPU, where torch has two, and two for the gradient."""
    return operators.negative_exp(x) if _kernel(backend, [x]) == "triton" else -torch.exp(x)


def _run(name: str, kernel: str, tensors: list[torch.Tensor], *rest: Any) -> torch.Tensor:
    """By the operator of that name, or on a GPU straight to its kernel if nobody would see the difference."""
    if kernel == "triton":
        direct = importlib.import_module("geomano_hpc.kernels.triton.dense.direct")
        if direct.nobody_looks(tensors):
            return direct.call(name, tensors, *rest)
    if name != "layer_norm":  # which runs in Triton only
        rest = (*rest, kernel)
    return getattr(operators, name)(*tensors, *rest)


def _kernel(backend: str, activations: list[torch.Tensor], parameters: list[torch.Tensor] | None = None) -> str | None:
    """Whose kernel takes these: `cpu`, `triton`, or None."""
    x, tensors = activations[0], activations + (parameters or [])
    device = x.device
    if torch.compiler.is_compiling() or x.dim() == 0 or x.numel() == 0:
        return None
    if any(tensor.device != device for tensor in tensors) or has_tangent(*tensors):
        return None
    if device.type == "cpu" and backend != "triton":
        if x.shape[-1] % LANES or any(tensor.dtype != torch.float32 for tensor in tensors):
            return None
        return "cpu" if autocast_dtype("cpu") is None and choose_backend(backend, "cpu") == "cpu" else None
    if x.dtype not in _IN_TRITON or any(one.dtype != x.dtype for one in activations) or x.shape[-1] > MOST_CHANNELS:
        return None
    of_parameters = (torch.float32, autocast_dtype(device.type) or x.dtype)
    if any(one.dtype not in of_parameters for one in parameters or ()):
        return None
    return "triton" if choose_backend(backend, device.type) == "triton" else None
