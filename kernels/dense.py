"""What stands between the matrix products of a GeoMaNO layer: convolution with SiLU, norm and gate, GELU.

Each is one operator of torch that the C++ kernel computes in one pass over memory, forwards and backwards, keeping its
inputs only. Where the scan runs on another backend, and for what the kernel does not take (anything but float32,
channels not a multiple of 16, autocast, forward-mode derivatives, a model that torch.compile fuses itself), plain torch
computes the same.

Axes: B batch, H x W grid, E channels.
"""

import ctypes
from typing import Any

import torch
import torch.nn.functional as F

from geomano_hpc.kernels.backends import choose_backend
from geomano_hpc.kernels.cpu.extension import load_library
from geomano_hpc.kernels.cpu.scan import LANES
from geomano_hpc.kernels.inputs import has_tangent


def conv_silu(z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """SiLU(depthwise 3 x 3 convolution of z + bias), zeros around the grid. z [B, H, W, E], weight [E, 1, 3, 3]."""
    E = z.shape[-1]
    fits = z.dim() == 4 and weight.shape == (E, 1, 3, 3) and bias.shape == (E,)  # else torch says what is wrong
    if fits and _is_for_the_kernel(backend, z, weight, bias):
        return _conv_silu(z, weight, bias)
    return F.silu(F.conv2d(z.movedim(-1, 1), weight, bias, padding=1, groups=E).movedim(1, -1))


def norm_gate(
    y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float, backend: str = "auto"
) -> torch.Tensor:
    """SiLU(LayerNorm(y)) * SiLU(z), all of them [..., E]."""
    fits = y.shape == z.shape and weight.shape == bias.shape == y.shape[-1:]
    if fits and _is_for_the_kernel(backend, y, z, weight, bias):
        return _norm_gate(y, z, weight, bias, epsilon)
    return F.silu(F.layer_norm(y, weight.shape, weight, bias, epsilon)) * F.silu(z)


def gelu(x: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """x Phi(x), with Phi the normal distribution."""
    return _gelu(x) if _is_for_the_kernel(backend, x) else F.gelu(x)


def _is_for_the_kernel(backend: str, x: torch.Tensor, *others: torch.Tensor) -> bool:
    if torch.compiler.is_compiling() or x.dim() == 0 or x.shape[-1] % LANES or x.numel() == 0:
        return False
    if any(tensor.dtype != torch.float32 or tensor.device != x.device for tensor in (x, *others)):
        return False
    if torch.is_autocast_enabled(x.device.type) or has_tangent(x, *others):
        return False
    return choose_backend(backend, x.device.type) == "cpu"


def _call(name: str, *arguments: torch.Tensor | int | float) -> None:
    """Tensors go as pointers, made contiguous; the number of threads comes last."""
    kept = [one.contiguous() if isinstance(one, torch.Tensor) else one for one in arguments]
    converted: list[Any] = []
    for argument in (*kept, torch.get_num_threads()):
        if isinstance(argument, torch.Tensor):
            assert argument.dtype == torch.float32, argument.dtype
            converted.append(ctypes.c_void_p(argument.data_ptr()))
        else:
            converted.append(ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_int64(argument))
    getattr(load_library(), name)(*converted)


@torch.library.custom_op("geomano_hpc::conv_silu", mutates_args=())
def _conv_silu(z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    x = _empty(z)
    _call("conv_silu_forward", *z.shape, z, weight, bias, x)
    return x


@torch.library.custom_op("geomano_hpc::conv_silu_backward", mutates_args=())
def _conv_silu_backward(
    dx: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dz, dweight, dbias = (_empty(one) for one in (z, weight, bias))
    _call("conv_silu_backward", *z.shape, z, weight, bias, dx, dz, dweight, dbias)
    return dz, dweight, dbias


@torch.library.custom_op("geomano_hpc::norm_gate", mutates_args=())
def _norm_gate(
    y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> torch.Tensor:
    out = _with_room(y)
    _call("norm_gate_forward", *_rows(y), y, z, weight, bias, epsilon, out)
    return out


@torch.library.custom_op("geomano_hpc::norm_gate_backward", mutates_args=())
def _norm_gate_backward(
    dout: torch.Tensor, y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    dy, dz, dweight, dbias = (_empty(one) for one in (y, z, weight, bias))
    _call("norm_gate_backward", *_rows(y), y, z, weight, bias, epsilon, dout, dy, dz, dweight, dbias)
    return dy, dz, dweight, dbias


@torch.library.custom_op("geomano_hpc::gelu", mutates_args=())
def _gelu(x: torch.Tensor) -> torch.Tensor:
    out = _with_room(x)
    _call("gelu_forward", x.numel(), x, out)
    return out


@torch.library.custom_op("geomano_hpc::gelu_backward", mutates_args=())
def _gelu_backward(dout: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    dx = _empty(x)
    _call("gelu_backward", x.numel(), x, dout, dx)
    return dx


def _with_room(like: torch.Tensor) -> torch.Tensor:
    """Memory for a result that a layer soon drops, with a page behind it that nobody uses.

    torch asks for memory that starts on a cache line, and for that glibc before 2.38 looks for a free block that is
    larger by the alignment: what a tensor leaves behind never serves a next one of the same size. What these leave
    behind does, and a training step takes a fifth less memory.
    """
    page = 4096 // like.itemsize
    return like.new_empty(like.numel() + page)[: like.numel()].view(like.shape)


def _rows(x: torch.Tensor) -> tuple[int, int]:
    return x.numel() // x.shape[-1], x.shape[-1]


def _empty(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)


_conv_silu.register_fake(lambda z, weight, bias: _empty(z))
_norm_gate.register_fake(lambda y, z, weight, bias, epsilon: _empty(y))
_gelu.register_fake(_empty)
_conv_silu_backward.register_fake(lambda dx, *inputs: tuple(_empty(one) for one in inputs))
_norm_gate_backward.register_fake(lambda dout, *inputs: tuple(_empty(one) for one in inputs[:-1]))
_gelu_backward.register_fake(lambda dout, x: _empty(x))


def _keep_inputs(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _keep_inputs_and_epsilon(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *tensors, ctx.epsilon = inputs
    ctx.save_for_backward(*tensors)


_conv_silu.register_autograd(lambda ctx, dx: _conv_silu_backward(dx, *ctx.saved_tensors), setup_context=_keep_inputs)
_gelu.register_autograd(lambda ctx, dout: _gelu_backward(dout, *ctx.saved_tensors), setup_context=_keep_inputs)
_norm_gate.register_autograd(
    lambda ctx, dout: (*_norm_gate_backward(dout, *ctx.saved_tensors, ctx.epsilon), None),
    setup_context=_keep_inputs_and_epsilon,
)
