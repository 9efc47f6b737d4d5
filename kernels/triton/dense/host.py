"""Launches of the dense kernels. What depends on the channels and precisions only is made once.

Tensors are activations [..., E], of any strides (a copy is made of what is not contiguous), and their parameters.
Results are new and contiguous. Meta tensors are planned alike.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton

from geomano_hpc.kernels.triton import launching
from geomano_hpc.kernels.triton.dense.convolution import conv_silu_kernel
from geomano_hpc.kernels.triton.dense.convolution_backward import conv_silu_backward_kernel
from geomano_hpc.kernels.triton.dense.depthwise import depthwise_kernel, depthwise_weights_kernel
from geomano_hpc.kernels.triton.dense.elementwise import (
    gate_backward_kernel,
    gate_kernel,
    gelu_backward_kernel,
    gelu_kernel,
    negative_exp_kernel,
)
from geomano_hpc.kernels.triton.dense.gate import norm_gate_backward_kernel, norm_gate_kernel
from geomano_hpc.kernels.triton.dense.norm import layer_norm_backward_kernel, layer_norm_kernel
from geomano_hpc.kernels.triton.dense.sums import sum_parts_kernel

_FEWEST_ROWS = 32  # of a program, so that its sums for weight and bias are few bytes beside the rows
_MOST_PROGRAMS = 1024  # of a norm
_SEGMENT = 16  # rows of a program of the convolution, at most
_COLUMNS = 16
_BLOCK = 1024
_COMMON = {"num_stages": 1, "enable_fp_fusion": True}


@lru_cache
def norm_constants(E: int) -> dict[str, Any]:
    """1024 numbers at a time, eight a thread."""
    BE = triton.next_power_of_2(E)
    warps = min(max(4, BE // 256), 16)
    return {"E": E, "BE": BE, "ROWS": max(1, 1024 // BE), "num_warps": warps, **_COMMON}


@lru_cache
def conv_constants(E: int, itemsize: int) -> dict[str, Any]:
    """128 bytes of channels, and four rows loaded together."""
    BE = min(triton.next_power_of_2(E), 128 // itemsize)
    return {"E": E, "BE": BE, "COLUMNS": _COLUMNS, "ROWS": 4, "num_warps": 4, **_COMMON}


@lru_cache
def conv_backward_constants(E: int) -> dict[str, Any]:
    """Two numbers a thread: each has some thirty values in registers."""
    return {"E": E, "BE": min(triton.next_power_of_2(E), 32), "COLUMNS": _COLUMNS, "num_warps": 8, **_COMMON}


@lru_cache
def sum_constants(E: int, taps: int) -> dict[str, Any]:
    """Columns of 32 bytes, so that there are enough programs."""
    return {"E": E, "TAPS": taps, "PARTS": 256, "COLUMNS": 8, "num_warps": 8, **_COMMON}


@lru_cache
def depthwise_constants(
    E: int, Q: int, wrap: tuple[bool, bool], is_gelu: bool, result: str, rows: int
) -> dict[str, Any]:
    """128 lanes, of `rows` rows."""
    both = _depthwise_lanes(E, Q, wrap)
    return {**both, "ROWS": rows, "STRIPS": 128 // (rows * both["BE"]), "GELU": is_gelu, "RESULT": result}


@lru_cache
def depthwise_weights_constants(E: int, P: int, Q: int, wrap: tuple[bool, bool]) -> dict[str, Any]:
    """Up to 28 sums a thread."""
    both = _depthwise_lanes(E, Q, wrap)
    return {**both, "TOGETHER": 128 // both["BE"], "P": P, "TAP_ROWS": min(P, max(1, 28 // Q))}


def _depthwise_lanes(E: int, Q: int, wrap: tuple[bool, bool]) -> dict[str, Any]:
    """A warp of channels; fewer columns where each needs many registers."""
    sizes = {"E": E, "BE": min(triton.next_power_of_2(E), 32), "COLUMNS": 8 if Q < 11 else 4, "Q": Q}
    return {**sizes, "WRAP_H": wrap[0], "WRAP_W": wrap[1], "num_warps": 4, **_COMMON}


BLOCK_CONSTANTS: dict[str, Any] = {"BLOCK": _BLOCK, "num_warps": 4, **_COMMON}


class _Rows(NamedTuple):
    rows: int
    per_program: int
    programs: int


@lru_cache(maxsize=1024)
def _rows(rows: int, E: int) -> _Rows:
    together = norm_constants(E)["ROWS"]
    per_program = together * triton.cdiv(max(_FEWEST_ROWS, triton.cdiv(rows, _MOST_PROGRAMS)), together)
    return _Rows(rows, per_program, triton.cdiv(rows, per_program))


class _Places(NamedTuple):
    height: int  # rows of a program
    segments: int
    column_blocks: int
    places: int  # programs for each block of channels


@lru_cache(maxsize=1024)
def _places(batch: int, H: int, W: int) -> _Places:
    segments = triton.cdiv(H, _SEGMENT)
    height = triton.cdiv(H, segments)
    segments, column_blocks = triton.cdiv(H, height), triton.cdiv(W, _COLUMNS)
    return _Places(height, segments, column_blocks, batch * segments * column_blocks)


def _launch(like: torch.Tensor, kernel: Any, programs: int, arguments: tuple[Any, ...], constants: Any) -> None:
    with torch.cuda.device_of(like):
        launching.launch(kernel, (programs,), arguments, constants)


def _empty(like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty(like.shape, dtype=dtype or like.dtype, device=like.device)


def _sum_parts(
    partial: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, taps: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """dweight and dbias from partial [parts, taps + 1, E]."""
    dweight, dbias = _empty(weight), _empty(bias)
    parts, E = partial.shape[0], partial.shape[-1]
    constants = sum_constants(E, taps)
    programs = triton.cdiv((taps + 1) * E, constants["COLUMNS"])
    _launch(partial, sum_parts_kernel, programs, (partial, dweight, dbias, parts), constants)
    return dweight, dbias


def conv_silu(z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    z, weight, bias, x = z.contiguous(), weight.contiguous(), bias.contiguous(), _empty(z)
    batch, H, W, E = z.shape
    places = _places(batch, H, W)
    constants = conv_constants(E, z.itemsize)
    arguments = (z, weight, bias, x, H, W, *places[:3])
    _launch(z, conv_silu_kernel, places.places * triton.cdiv(E, constants["BE"]), arguments, constants)
    return x


def conv_silu_backward(
    dx: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dx, z, weight, bias, dz = dx.contiguous(), z.contiguous(), weight.contiguous(), bias.contiguous(), _empty(z)
    batch, H, W, E = z.shape
    places = _places(batch, H, W)
    constants = conv_backward_constants(E)
    partial = torch.empty(places.places, 10, E, dtype=torch.float32, device=z.device)
    arguments = (z, weight, bias, dx, dz, partial, H, W, *places[:3])
    _launch(z, conv_silu_backward_kernel, places.places * triton.cdiv(E, constants["BE"]), arguments, constants)
    return dz, *_sum_parts(partial, weight, bias, taps=9)


def depthwise_conv(
    z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, activation: str, wrap: Sequence[bool]
) -> torch.Tensor:
    z, x = z.contiguous(), _empty(z)
    _depthwise(z, weight, _taps_first(weight), bias.contiguous(), z, x, wrap, activation == "gelu", "activation")
    return x


def depthwise_conv_backward(
    dx: torch.Tensor,
    z: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    activation: str,
    wrap: Sequence[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dx, z, bias, g, dz = dx.contiguous(), z.contiguous(), bias.contiguous(), _empty(z, torch.float32), _empty(z)
    taps = _taps_first(weight)
    _depthwise(z, weight, taps, bias, dx, g, wrap, activation == "gelu", "slope")
    _depthwise(g, weight, taps, bias, g, dz, wrap, False, "gradient")

    batch, H, W, E = z.shape
    P, Q = weight.shape[-2:]
    constants = depthwise_weights_constants(E, P, Q, tuple(wrap))
    strips = triton.cdiv(W, constants["COLUMNS"])
    # Sums of a place are few beside its points.
    of_place = max(32, P * Q // 2, triton.cdiv(batch * H * strips, _MOST_PROGRAMS))
    places = triton.cdiv(batch * H * strips, of_place)
    partial = torch.empty(places, P * Q + 1, E, dtype=torch.float32, device=z.device)
    programs = places * triton.cdiv(E, constants["BE"]) * triton.cdiv(P, constants["TAP_ROWS"])
    _launch(z, depthwise_weights_kernel, programs, (z, g, partial, batch, H, W, strips, of_place), constants)
    return dz, *_sum_parts(partial, weight, bias, taps=P * Q)


def _taps_first(weight: torch.Tensor) -> torch.Tensor:
    """[P Q, E], so that neighbouring lanes load neighbouring numbers."""
    return weight.flatten(1).t().contiguous()


def _depthwise(
    z: torch.Tensor,
    weight: torch.Tensor,
    taps: torch.Tensor,
    bias: torch.Tensor,
    dx: torch.Tensor,
    out: torch.Tensor,
    wrap: Sequence[bool],
    is_gelu: bool,
    result: str,
) -> None:
    batch, H, W, E = z.shape
    P, Q = weight.shape[-2:]
    constants = depthwise_constants(E, Q, tuple(wrap), is_gelu, result, rows=1 if P == 1 else 4)
    row_tiles = triton.cdiv(H, constants["ROWS"])
    column_tiles = triton.cdiv(W, constants["STRIPS"] * constants["COLUMNS"])
    programs = batch * row_tiles * column_tiles * triton.cdiv(E, constants["BE"])
    arguments = (z, taps, bias, dx, out, H, W, P, row_tiles, column_tiles)
    _launch(z, depthwise_kernel, programs, arguments, constants)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float, dtype: torch.dtype
) -> torch.Tensor:
    x, weight, bias, out = x.contiguous(), weight.contiguous(), bias.contiguous(), _empty(x, dtype)
    E = x.shape[-1]
    rows, per_program, programs = _rows(x.numel() // E, E)
    arguments = (x, weight, bias, out, rows, per_program, epsilon)
    _launch(x, layer_norm_kernel, programs, arguments, norm_constants(E))
    return out


def layer_norm_backward(
    dout: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float, _dtype: Any = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dout, x, weight, dx = dout.contiguous(), x.contiguous(), weight.contiguous(), _empty(x)
    E = x.shape[-1]
    rows, per_program, programs = _rows(x.numel() // E, E)
    partial = torch.empty(programs, 2, E, dtype=torch.float32, device=x.device)
    arguments = (x, weight, dout, dx, partial, rows, per_program, epsilon)
    _launch(x, layer_norm_backward_kernel, programs, arguments, norm_constants(E))
    return dx, *_sum_parts(partial, weight, bias)


def norm_gate(
    y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> torch.Tensor:
    y, z, weight, bias, out = y.contiguous(), z.contiguous(), weight.contiguous(), bias.contiguous(), _empty(y)
    E = y.shape[-1]
    rows, per_program, programs = _rows(y.numel() // E, E)
    arguments = (y, z, weight, bias, out, rows, per_program, epsilon)
    _launch(y, norm_gate_kernel, programs, arguments, norm_constants(E))
    return out


def norm_gate_backward(
    dout: torch.Tensor, y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    dout, y, z, weight, bias = (tensor.contiguous() for tensor in (dout, y, z, weight, bias))
    dy, dz = _empty(y), _empty(z)
    E = y.shape[-1]
    rows, per_program, programs = _rows(y.numel() // E, E)
    partial = torch.empty(programs, 2, E, dtype=torch.float32, device=y.device)
    arguments = (y, z, weight, bias, dout, dy, dz, partial, rows, per_program, epsilon)
    _launch(y, norm_gate_backward_kernel, programs, arguments, norm_constants(E))
    return dy, dz, *_sum_parts(partial, weight, bias)


def gate(y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    y, z, out = y.contiguous(), z.contiguous(), _empty(y)
    size = y.numel()
    _launch(y, gate_kernel, triton.cdiv(size, _BLOCK), (y, z, out, size), BLOCK_CONSTANTS)
    return out


def gate_backward(dout: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    dout, y, z, dy, dz = dout.contiguous(), y.contiguous(), z.contiguous(), _empty(y), _empty(z)
    size = y.numel()
    _launch(y, gate_backward_kernel, triton.cdiv(size, _BLOCK), (y, z, dout, dy, dz, size), BLOCK_CONSTANTS)
    return dy, dz


def gelu(x: torch.Tensor) -> torch.Tensor:
    x, out = x.contiguous(), _empty(x)
    size = x.numel()
    _launch(x, gelu_kernel, triton.cdiv(size, _BLOCK), (x, out, size), BLOCK_CONSTANTS)
    return out


def gelu_backward(dout: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    dout, x, dx = dout.contiguous(), x.contiguous(), _empty(x)
    size = x.numel()
    _launch(x, gelu_backward_kernel, triton.cdiv(size, _BLOCK), (x, dout, dx, size), BLOCK_CONSTANTS)
    return dx


def negative_exp(x: torch.Tensor) -> torch.Tensor:
    x, out = x.contiguous(), _empty(x)
    size = x.numel()
    _launch(x, negative_exp_kernel, triton.cdiv(size, _BLOCK), (x, out, size), BLOCK_CONSTANTS)
    return out
