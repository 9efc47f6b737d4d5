"""What stands between the matrix products of a GeoMaNO layer: convolution with SiLU, norm and gate, GELU.

Each is one operator of torch that the C++ kernel computes in one pass over memory, forwards and backwards, keeping its
inputs only. Where the scan runs on another backend, and for what the kernel does not take (other precisions than
float32, channels not a multiple of 16, a model that torch.compile fuses itself), plain torch computes the same.

Axes: B batch, H x W grid, E channels.
"""

import ctypes
from typing import Any

import torch
import torch.nn.functional as F

from geomano_hpc.kernels.backends import choose_backend
from geomano_hpc.kernels.cpu_extension import load_library
from geomano_hpc.kernels.cpu_scan import LANES


def conv_silu(z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """SiLU(depthwise 3 x 3 convolution of z + bias), zeros around the grid. z [B, H, W, E], weight [E, 1, 3, 3]."""
    if _is_for_the_kernel(z, backend):
        return _conv_silu(z.contiguous(), weight, bias)
    convolved = F.conv2d(z.movedim(-1, 1), weight, bias, padding=1, groups=len(weight)).movedim(1, -1)
    return F.silu(convolved)


def norm_gate(
    y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float, backend: str = "auto"
) -> torch.Tensor:
    """SiLU(LayerNorm(y)) * SiLU(z), all of them [..., E]."""
    if _is_for_the_kernel(y, backend) and _is_for_the_kernel(z, backend):
        return _norm_gate(y.contiguous(), z.contiguous(), weight, bias, epsilon)
    return F.silu(F.layer_norm(y, weight.shape, weight, bias, epsilon)) * F.silu(z)


def gelu(x: torch.Tensor, backend: str = "auto") -> torch.Tensor:
    """x Phi(x), with Phi the normal distribution."""
    return _gelu(x.contiguous()) if _is_for_the_kernel(x, backend) else F.gelu(x)


def _is_for_the_kernel(x: torch.Tensor, backend: str) -> bool:
    if torch.compiler.is_compiling() or x.dtype != torch.float32 or x.shape[-1] % LANES or x.numel() == 0:
        return False
    return choose_backend(backend, x.device.type) == "cpu"


def _call(name: str, *arguments: torch.Tensor | int | float) -> None:
    """Tensors, which are contiguous, go as pointers; the number of threads comes last."""
    converted: list[Any] = []
    for argument in (*arguments, torch.get_num_threads()):
        if isinstance(argument, torch.Tensor):
            converted.append(ctypes.c_void_p(argument.data_ptr()))
        else:
            converted.append(ctypes.c_float(argument) if isinstance(argument, float) else ctypes.c_int64(argument))
    getattr(load_library(), name)(*converted)


@torch.library.custom_op("geomano_hpc::conv_silu", mutates_args=())
def _conv_silu(z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    x = _empty(z)
    _call("conv_silu_forward", *z.shape, z, weight.contiguous(), bias.contiguous(), x)
    return x


@torch.library.custom_op("geomano_hpc::conv_silu_backward", mutates_args=())
def _conv_silu_backward(
    dx: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dz, dweight, dbias = (_empty(one) for one in (z, weight, bias))
    weight, bias = weight.contiguous(), bias.contiguous()
    _call("conv_silu_backward", *z.shape, z, weight, bias, dx.contiguous(), dz, dweight, dbias)
    return dz, dweight, dbias


@torch.library.custom_op("geomano_hpc::norm_gate", mutates_args=())
def _norm_gate(
    y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> torch.Tensor:
    out = _with_room(y)
    _call("norm_gate_forward", *_rows(y), y, z, weight.contiguous(), bias.contiguous(), epsilon, out)
    return out


@torch.library.custom_op("geomano_hpc::norm_gate_backward", mutates_args=())
def _norm_gate_backward(
    dout: torch.Tensor, y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    dy, dz, dweight, dbias = (_empty(one) for one in (y, z, weight, bias))
    weight, bias = weight.contiguous(), bias.contiguous()
    _call("norm_gate_backward", *_rows(y), y, z, weight, bias, epsilon, dout.contiguous(), dy, dz, dweight, dbias)
    return dy, dz, dweight, dbias


@torch.library.custom_op("geomano_hpc::gelu", mutates_args=())
def _gelu(x: torch.Tensor) -> torch.Tensor:
    out = _with_room(x)
    _call("gelu_forward", x.numel(), x, out)
    return out


@torch.library.custom_op("geomano_hpc::gelu_backward", mutates_args=())
def _gelu_backward(dout: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    dx = _empty(x)
    _call("gelu_backward", x.numel(), x, dout.contiguous(), dx)
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


_conv_silu.register_fake(lambda z, weight, bias: torch.empty_like(z))
_norm_gate.register_fake(lambda y, z, weight, bias, epsilon: torch.empty_like(y))
_gelu.register_fake(torch.empty_like)
_conv_silu_backward.register_fake(lambda dx, *inputs: tuple(_empty(one) for one in inputs))
_norm_gate_backward.register_fake(lambda dout, *inputs: tuple(_empty(one) for one in inputs[:-1]))
_gelu_backward.register_fake(lambda dout, x: torch.empty_like(x))


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*(one for one in inputs if isinstance(one, torch.Tensor)))
    ctx.epsilon = inputs[-1]


_conv_silu.register_autograd(lambda ctx, dx: _conv_silu_backward(dx, *ctx.saved_tensors), setup_context=_keep_inputs)
_norm_gate.register_autograd(
    lambda ctx, dout: (*_norm_gate_backward(dout, *ctx.saved_tensors, ctx.epsilon), None), setup_context=_keep_inputs
)
_gelu.register_autograd(lambda ctx, dout: _gelu_backward(dout, *ctx.saved_tensors), setup_context=_keep_inputs)
