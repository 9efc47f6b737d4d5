"""The dense parts as operators of torch, with gradients and with shapes for tracing. They keep their inputs only.

`backend` is `cpu` or `triton`, chosen in dense.py, which is what models call. Operators without it run in Triton only:
on a CPU torch's own are as good.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import torch

_MODULES = {"cpu": "cpu.dense", "triton": "triton.dense.host"}


def _of(backend: str) -> Any:
    """The module that computes, and no other: Triton takes a second to import."""
    return importlib.import_module(f"geomano_hpc.kernels.{_MODULES[backend]}")


@torch.library.custom_op("geomano_hpc::conv_silu", mutates_args=())
def conv_silu(z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, backend: str) -> torch.Tensor:
    return _of(backend).conv_silu(z, weight, bias)


@torch.library.custom_op("geomano_hpc::conv_silu_backward", mutates_args=())
def conv_silu_backward(
    dx: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, backend: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _of(backend).conv_silu_backward(dx, z, weight, bias)


@torch.library.custom_op("geomano_hpc::depthwise_conv", mutates_args=())
def depthwise_conv(
    z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, activation: str, wrap: Sequence[bool], backend: str
) -> torch.Tensor:
    return _of(backend).depthwise_conv(z, weight, bias, activation, wrap)


@torch.library.custom_op("geomano_hpc::depthwise_conv_backward", mutates_args=())
def depthwise_conv_backward(
    dx: torch.Tensor,
    z: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    activation: str,
    wrap: Sequence[bool],
    backend: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _of(backend).depthwise_conv_backward(dx, z, weight, bias, activation, wrap)


@torch.library.custom_op("geomano_hpc::norm_gate", mutates_args=())
def norm_gate(
    y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float, backend: str
) -> torch.Tensor:
    return _of(backend).norm_gate(y, z, weight, bias, epsilon)


@torch.library.custom_op("geomano_hpc::norm_gate_backward", mutates_args=())
def norm_gate_backward(
    dout: torch.Tensor,
    y: torch.Tensor,
    z: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float,
    backend: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    return _of(backend).norm_gate_backward(dout, y, z, weight, bias, epsilon)


@torch.library.custom_op("geomano_hpc::gate", mutates_args=())
def gate(y: torch.Tensor, z: torch.Tensor, backend: str) -> torch.Tensor:
    return _of(backend).gate(y, z)


@torch.library.custom_op("geomano_hpc::gate_backward", mutates_args=())
def gate_backward(
    dout: torch.Tensor, y: torch.Tensor, z: torch.Tensor, backend: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return _of(backend).gate_backward(dout, y, z)


@torch.library.custom_op("geomano_hpc::gelu", mutates_args=())
def gelu(x: torch.Tensor, backend: str) -> torch.Tensor:
    return _of(backend).gelu(x)


@torch.library.custom_op("geomano_hpc::gelu_backward", mutates_args=())
def gelu_backward(dout: torch.Tensor, x: torch.Tensor, backend: str) -> torch.Tensor:
    return _of(backend).gelu_backward(dout, x)


@torch.library.custom_op("geomano_hpc::layer_norm", mutates_args=())
def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float, dtype: torch.dtype
) -> torch.Tensor:
    return _of("triton").layer_norm(x, weight, bias, epsilon, dtype)


@torch.library.custom_op("geomano_hpc::layer_norm_backward", mutates_args=())
def layer_norm_backward(
    dout: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _of("triton").layer_norm_backward(dout, x, weight, bias, epsilon)


@torch.library.custom_op("geomano_hpc::negative_exp", mutates_args=())
def negative_exp(x: torch.Tensor) -> torch.Tensor:
    return _of("triton").negative_exp(x)


def _empty(like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty_like(like, dtype=dtype, memory_format=torch.contiguous_format)


conv_silu.register_fake(lambda z, *rest: _empty(z))
depthwise_conv.register_fake(lambda z, *rest: _empty(z))
norm_gate.register_fake(lambda y, *rest: _empty(y))
gate.register_fake(lambda y, *rest: _empty(y))
gelu.register_fake(lambda x, backend: _empty(x))
layer_norm.register_fake(lambda x, weight, bias, epsilon, dtype: _empty(x, dtype))
negative_exp.register_fake(_empty)
conv_silu_backward.register_fake(lambda dx, *inputs: tuple(_empty(one) for one in inputs[:3]))
depthwise_conv_backward.register_fake(lambda dx, *inputs: tuple(_empty(one) for one in inputs[:3]))
norm_gate_backward.register_fake(lambda dout, *inputs: tuple(_empty(one) for one in inputs[:4]))
gate_backward.register_fake(lambda dout, y, z, backend: (_empty(y), _empty(z)))
layer_norm_backward.register_fake(lambda dout, *inputs: tuple(_empty(one) for one in inputs[:3]))
gelu_backward.register_fake(lambda dout, x, backend: _empty(x))


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    """Tensors come first, and what else the operator takes after them."""
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    ctx.save_for_backward(*tensors)
    ctx.rest = inputs[len(tensors) :]


conv_silu.register_autograd(
    lambda ctx, dx: (*conv_silu_backward(dx, *ctx.saved_tensors, *ctx.rest), None), setup_context=_keep_inputs
)
depthwise_conv.register_autograd(
    lambda ctx, dx: (*depthwise_conv_backward(dx, *ctx.saved_tensors, *ctx.rest), None, None, None),
    setup_context=_keep_inputs,
)
norm_gate.register_autograd(
    lambda ctx, dout: (*norm_gate_backward(dout, *ctx.saved_tensors, *ctx.rest), None, None),
    setup_context=_keep_inputs,
)
gate.register_autograd(
    lambda ctx, dout: (*gate_backward(dout, *ctx.saved_tensors, *ctx.rest), None), setup_context=_keep_inputs
)
gelu.register_autograd(
    lambda ctx, dout: (gelu_backward(dout, *ctx.saved_tensors, *ctx.rest), None), setup_context=_keep_inputs
)
layer_norm.register_autograd(
    lambda ctx, dout: (*layer_norm_backward(dout, *ctx.saved_tensors, ctx.rest[0]), None, None),
    setup_context=_keep_inputs,
)
negative_exp.register_autograd(
    lambda ctx, dout: dout * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)
