"""The gradient of dt, B and C as one tensor."""

from typing import Any

import pytest
import torch

from geomano_hpc.kernels import rows as subject
from geomano_hpc.kernels.rows import joined, split_rows

SIZES = (3, 2, 2)


@pytest.fixture
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "choose_backend", lambda *_: "triton")


def test_pieces_of_one_tensor_are_found_and_others_are_not() -> None:
    whole = torch.randn(2, 4, 5, 7)[1:]
    pieces = whole.split(SIZES, dim=-1)
    found = joined(pieces)
    assert found is not None
    assert found.data_ptr() == whole.data_ptr()
    assert torch.equal(found, whole)
    first, second, third = pieces
    for others in (
        [first, third, second],
        [first, second],
        [first, second, third.clone()],
        [piece.contiguous() for piece in pieces],
        whole.transpose(0, 1).split(SIZES, dim=-1),
        torch.randn(2, 4, 5, 9).split((3, 2, 2, 2), dim=-1)[:3],
    ):
        assert joined(others) is None


class Two(torch.autograd.Function):
    """Takes pieces, and gives gradients as the scan does: pieces of one tensor, or not."""

    written: torch.Tensor

    @staticmethod
    def forward(ctx: Any, together: bool, *pieces: torch.Tensor) -> torch.Tensor:
        ctx.together = together
        return torch.stack([piece.sum() for piece in pieces])

    @staticmethod
    def backward(ctx: Any, d: torch.Tensor) -> Any:
        rows = torch.arange(2 * 7.0).view(2, 7)
        Two.written = rows
        pieces = rows.split(SIZES, dim=-1)
        return None, *(pieces if ctx.together else [piece.clone() for piece in pieces])


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize("together", [True, False])
def test_gradient_is_the_tensor_itself_or_a_copy(together: bool) -> None:
    leaf = torch.randn(2, 7, requires_grad=True)
    pieces = split_rows(leaf, SIZES)
    assert all(torch.equal(*pair) for pair in zip(pieces, leaf.split(SIZES, dim=-1), strict=True))
    (found,) = torch.autograd.grad(Two.apply(together, *pieces), leaf, torch.ones(3))
    assert torch.equal(found, torch.arange(2 * 7.0).view(2, 7))
    assert (found.data_ptr() == Two.written.data_ptr()) == together


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_second_derivatives_are_torchs() -> None:
    leaf = torch.randn(2, 7, requires_grad=True, dtype=torch.float64)

    def product(x: torch.Tensor) -> torch.Tensor:
        a, b, c = split_rows(x, SIZES)
        return (a[:, :2] ** 3 * b * c).sum()

    assert torch.autograd.gradcheck(product, leaf)
    assert torch.autograd.gradgradcheck(product, leaf)


def test_on_a_cpu_it_is_torchs_split() -> None:
    dt, *_ = split_rows(torch.randn(2, 7, requires_grad=True), SIZES)
    assert "Split" in type(dt.grad_fn).__name__
    assert "_SplitRows" not in type(dt.grad_fn).__name__
