"""A stack of equal layers, what a layer computes again instead of keeping it, and the two ways to compute a stack
otherwise: checkpointed, and with compiled dense parts."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from geomano_hpc.errors import ConfigError

Result = TypeVar("Result")


def keeping_inputs(region: Callable[..., Result], *inputs: torch.Tensor) -> Result:
    """region(*inputs), of which the backward finds the inputs only, and computes again what lies between.

    For norms and activations in front of a matrix product: they cost little, and keeping them takes much of a
    layer's memory. The product itself is not repeated: computing again stops as soon as the backward has what it needs.
    A compiler decides this by itself.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return region(*inputs)
    result: Result = checkpoint(
        region, *inputs, use_reentrant=False, preserve_rng_state=False, determinism_check="none"
    )
    return result


class LayerStack(nn.ModuleList):
    """Layers one after the other. With activation checkpointing only the input of each layer is kept for the backward,
    which computes the layer again: the memory of one layer instead of all, for one more forward."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__(layers)
        self.checkpointing = False

    def forward(self, z: torch.Tensor, *given: Any) -> torch.Tensor:
        """`given` is what every layer gets beside z."""
        for layer in self:
            again = self.checkpointing and torch.is_grad_enabled()
            z = checkpoint(layer, z, *given, use_reentrant=False) if again else layer(z, *given)
        return z


def checkpoint_layers(model: nn.Module) -> None:
    """Switch activation checkpointing on, in every stack of the model."""
    stacks = [module for module in model.modules() if isinstance(module, LayerStack)]
    if not stacks:
        raise ConfigError(
            f"compute.activation_checkpointing is per layer, and {type(model).__name__} has no layer stack: leave it "
            f"off, or keep the model's layers in a {LayerStack.__module__}:{LayerStack.__name__}"
        )
    for stack in stacks:
        stack.checkpointing = True


def compile_dense_parts(model: nn.Module, backend: str = "inductor") -> None:
    """torch.compile in place, for the parts that the model names in `dense_parts`; the names of its parameters stay.

    The scan is an operator with kernels of its own, which a compiler can only call.
    """
    parts = getattr(model, "dense_parts", None)
    if parts is None:
        raise ConfigError(
            f"compute.compile: {type(model).__name__} names no dense parts to compile: leave it off, or give the model "
            "a method dense_parts() that returns a list of modules"
        )
    for part in parts():
        part.compile(backend=backend)
