"""Convolutions whose taps keep their distance in the domain."""

import pytest
import torch
import torch.nn.functional as F

from geomano_hpc.models.parts.local import DepthwiseConv, filled_in
from geomano_hpc.models.parts.taps import on_spacing


def test_a_finer_grid_finds_the_taps_farther_apart() -> None:
    weight = torch.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    dilated = torch.zeros(5, 7)
    dilated[::2, ::3] = weight[0, 0]
    assert torch.equal(on_spacing(weight, (1 / 2, 1 / 3))[0, 0], dilated)


def test_a_tap_between_points_is_shared_by_its_neighbours() -> None:
    taps = torch.tensor([[[[1.0, 2.0, 4.0]]]])
    finer = on_spacing(taps, (1.0, 2 / 3))[0, 0, 0]  # taps at -1.5, 0, 1.5
    assert torch.allclose(finer, torch.tensor([0.5, 0.5, 2.0, 2.0, 2.0]))
    coarser = on_spacing(taps, (1.0, 2.0))[0, 0, 0]  # taps at -0.5, 0, 0.5
    assert torch.allclose(coarser, torch.tensor([0.5, 4.5, 2.0]))


@pytest.mark.parametrize("spacing", [(0.3, 1.7), (2.5, 2.5), (1 / 7, 0.9)])
def test_taps_keep_their_sum_and_their_centre(spacing: tuple[float, float]) -> None:
    """So that a linear field is convolved to the same on every grid."""
    weight = torch.randn(4, 1, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = on_spacing(weight, spacing)
    assert torch.allclose(found.sum((2, 3)), weight.sum((2, 3)))
    for axis, one in zip((2, 3), spacing, strict=True):
        before, after = (
            (w.transpose(axis, 3).sum(2) * (torch.arange(w.shape[axis]) - w.shape[axis] // 2)).sum(-1)
            for w in (weight, found)
        )
        assert torch.allclose(after * one, before)


def test_a_spacing_of_one_is_the_convolution_itself() -> None:
    convolution = DepthwiseConv(16, 3, "silu")
    z = torch.randn(2, 6, 5, 16)
    assert torch.equal(convolution(z), convolution(z, (1.0, 1.0), (False, False)))
    assert torch.equal(on_spacing(convolution.weight, (1.0, 1.0)), convolution.weight)


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("wrap", [(True, True), (False, True), (True, False), (False, False)])
def test_it_is_torchs_convolution_and_wraps_where_asked(activation: str, wrap: tuple[bool, bool]) -> None:
    convolution = DepthwiseConv(4, 5, activation).double()
    z = torch.randn(1, 7, 6, 4, dtype=torch.float64)
    expected = z.movedim(-1, 1)
    for axis, rings in enumerate(wrap):
        pad = [0, 0, 2, 2] if axis == 0 else [2, 2, 0, 0]
        expected = F.pad(expected, pad, mode="circular" if rings else "constant")
    expected = F.conv2d(expected, convolution.weight, convolution.bias, groups=4).movedim(1, -1)
    torch.testing.assert_close(convolution(z, wrap=wrap), getattr(F, activation)(expected))


def test_a_ring_of_few_points_is_gone_round_more_than_once() -> None:
    convolution = DepthwiseConv(2, 7, "silu").double()
    z = torch.randn(1, 2, 3, 2, dtype=torch.float64)
    many = z.repeat(1, 5, 5, 1)
    around = convolution(many, wrap=(True, True))
    torch.testing.assert_close(convolution(z, wrap=(True, True)), around[:, :2, :3])


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("size", [3, 7])
def test_a_field_with_more_points_between_is_convolved_to_what_lies_between_up_to_the_walls(
    size: int, times: int
) -> None:
    """Linear between the points, and between a wall and the zero beyond it, as the fields of the training are."""
    convolution = DepthwiseConv(3, size, "silu").double()
    torch.nn.init.constant_(convolution.bias, 50.0)  # type: ignore[arg-type]  # so large that SiLU(x) is x
    coarse = torch.randn(2, 5, 6, 3, dtype=torch.float64)
    fine = filled_in(filled_in(coarse, 1, times, False), 2, times, False)
    found = convolution(fine, (1 / times, 1 / times))
    expected = filled_in(filled_in(convolution(coarse), 1, times, False), 2, times, False)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("wrap", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("every", [(2, 2), (4, 1), (1, 2)])
@pytest.mark.parametrize(("size", "grid"), [(7, (5, 6)), (7, (1, 3)), (5, (2, 3)), (3, (4, 1)), (1, (3, 3))])
def test_every_nth_point_is_convolved_as_if_those_between_were_there(
    size: int, grid: tuple[int, int], every: tuple[int, int], wrap: tuple[bool, bool], activation: str
) -> None:
    torch.manual_seed(0)
    convolution = DepthwiseConv(3, size, activation).double()
    z = torch.randn(2, *grid, 3, dtype=torch.float64, requires_grad=True)
    between = filled_in(filled_in(z, 1, every[0], wrap[0]), 2, every[1], wrap[1])
    expected = convolution(between, wrap=wrap)[:, :: every[0], :: every[1]]
    found = convolution(z, (float(every[0]), float(every[1])), wrap)
    torch.testing.assert_close(found, expected)
    towards = torch.randn_like(found)
    inputs = [z, *convolution.parameters()]
    for one, other in zip(
        torch.autograd.grad(found, inputs, towards), torch.autograd.grad(expected, inputs, towards), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_every_nth_point_in_another_precision() -> None:
    convolution, z = DepthwiseConv(4, 7), torch.randn(1, 6, 6, 4)
    with torch.no_grad():
        expected = convolution(z, (2.0, 2.0))
        with torch.autocast("cpu", torch.bfloat16):
            found = convolution(z, (2.0, 2.0))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected, atol=0.02, rtol=0.05)
