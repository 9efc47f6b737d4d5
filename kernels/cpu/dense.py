"""The dense parts in C++: each is one pass over memory. Float32, channels a multiple of LANES."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from geomano_hpc.kernels.cpu.extension import load_library
from geomano_hpc.kernels.cpu.scan import LANES


def conv_silu(z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return depthwise_conv(z, weight, bias, "silu", (False, False))


def conv_silu_backward(
    dx: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return depthwise_conv_backward(dx, z, weight, bias, "silu", (False, False))


def depthwise_conv(
    z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, activation: str, wrap: Sequence[bool]
) -> torch.Tensor:
    x = _with_room(z)
    _call("depthwise_conv_forward", *_convolution(z, weight, activation, wrap), z, weight, bias, x)
    return x


def depthwise_conv_backward(
    dx: torch.Tensor,
    z: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    activation: str,
    wrap: Sequence[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    du, dz, dweight, dbias = _with_room(z), _with_room(z), _empty(weight), _empty(bias)
    sizes = _convolution(z, weight, activation, wrap)
    _call("depthwise_conv_backward", *sizes, z, weight, bias, dx, du, dz, dweight, dbias)
    return dz, dweight, dbias


def multiply_adds(count: int) -> None:
    """So many of single channels, in the registers: at the machine's peak."""
    _call("multiply_adds", -(-count // (LANES * torch.get_num_threads())))


def _convolution(z: torch.Tensor, weight: torch.Tensor, activation: str, wrap: Sequence[bool]) -> tuple[int, ...]:
    return *z.shape, *weight.shape[-2:], activation == "gelu", *wrap


def norm_gate(
    y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> torch.Tensor:
    out = _with_room(y)
    _call("norm_gate_forward", *_rows(y), y, z, weight, bias, epsilon, out)
    return out


def norm_gate_backward(
    dout: torch.Tensor, y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    dy, dz, dweight, dbias = (_empty(one) for one in (y, z, weight, bias))
    _call("norm_gate_backward", *_rows(y), y, z, weight, bias, epsilon, dout, dy, dz, dweight, dbias)
    return dy, dz, dweight, dbias


def gate(y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    out = _with_room(y)
    _call("gate_forward", y.numel(), y, z, out)
    return out


def gate_backward(dout: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    dy, dz = _empty(y), _empty(z)
    _call("gate_backward", y.numel(), y, z, dout, dy, dz)
    return dy, dz


def gelu(x: torch.Tensor) -> torch.Tensor:
    out = _with_room(x)
    _call("gelu_forward", x.numel(), x, out)
    return out


def gelu_backward(dout: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    dx = _empty(x)
    _call("gelu_backward", x.numel(), x, dout, dx)
    return dx


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
