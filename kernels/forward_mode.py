"""Derivatives in forward mode, which operators of our own do not have: they would be lost without a word."""

import torch
from torch.autograd import forward_ad


def has_tangent(*tensors: torch.Tensor | None) -> bool:
    if forward_ad._current_level < 0:
        return False
    return any(tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)
