"""The rows from which dt, B and C are cut, [B, H, W, K, r + 2N], and their gradient as one tensor.

torch's own split would put the gradients of the pieces together in a copy, the largest of a layer's backward. The scan
in Triton writes them side by side, and `split_rows` sees that.
"""

from collections.abc import Sequence
from typing import Any

import torch

from geomano_hpc.kernels.backends import choose_backend
from geomano_hpc.kernels.inputs import has_tangent


def split_rows(rows: torch.Tensor, sizes: Sequence[int], backend: str = "auto") -> tuple[torch.Tensor, ...]:
    """rows.split(sizes, dim=-1), whose gradient is no copy where the gradients of the pieces lie side by side."""
    if torch.compiler.is_compiling() or has_tangent(rows) or not _is_triton(backend, rows):
        return rows.split(list(sizes), dim=-1)
    return _SplitRows.apply(rows, sizes)


def _is_triton(backend: str, rows: torch.Tensor) -> bool:
    known = backend not in ("reference", "loop")  # which have no kernels
    return known and choose_backend(backend, rows.device.type) == "triton"


def joined(pieces: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The contiguous tensor whose pieces along the last axis these are, if they are its pieces, in their order.

    What stands for a tensor while a compiler traces has no memory to look at.
    """
    if any(type(piece) is not torch.Tensor for piece in pieces):
        return None
    first = pieces[0]
    shape = (*first.shape[:-1], sum(piece.shape[-1] for piece in pieces))
    strides = [1]
    for size in shape[:0:-1]:
        strides.insert(0, strides[0] * size)
    memory, at = first.untyped_storage()._cdata, first.storage_offset()
    for piece in pieces:
        same = piece.dtype == first.dtype and piece.untyped_storage()._cdata == memory
        if not same or piece.storage_offset() != at or piece.shape[:-1] != shape[:-1]:
            return None
        if piece.stride() != tuple(strides):
            return None
        at += piece.shape[-1]
    return first.as_strided(shape, strides)


class _SplitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
        return rows.split(list(sizes), dim=-1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        whole = None if any(grad.requires_grad for grad in grads) else joined(grads)
        return torch.cat(grads, dim=-1) if whole is None else whole, None
