"""The dense parts straight to their kernels: an operator of torch takes the host longer than several launches.

Operators are for those who look at what torch dispatches: counters, tracers, torch.func, and tensors without memory.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from geomano_hpc.kernels.triton.dense import host

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def nobody_looks(tensors: list[torch.Tensor]) -> bool:
    """No dispatch mode, no transform of torch.func, and tensors that are just that."""
    return (
        torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and all(type(tensor) in _PLAIN and not tensor.is_meta for tensor in tensors)
    )


def call(name: str, tensors: list[torch.Tensor], *rest: Any) -> torch.Tensor:
    """A function of host.py, with the gradient that is beside it."""
    if torch.is_grad_enabled():
        return _WithGradient.apply(name, rest, *tensors)
    return getattr(host, name)(*tensors, *rest)


class _WithGradient(torch.autograd.Function):
    """Keeps its inputs only."""

    @staticmethod
    def forward(ctx: Any, name: str, rest: tuple[Any, ...], *tensors: torch.Tensor) -> torch.Tensor:
        ctx.name, ctx.rest = name, rest
        ctx.save_for_backward(*tensors)
        return getattr(host, name)(*tensors, *rest)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        found = getattr(host, f"{ctx.name}_backward")(gradient, *ctx.saved_tensors, *ctx.rest)
        return None, None, *(found if isinstance(found, tuple) else (found,))
