"""Depthwise convolutions of any odd size, on grids with walls and rings: the C++ kernel against torch in float64."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from geomano_hpc.kernels import conv_silu, depthwise_conv
from geomano_hpc.kernels.cpu import dense

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"silu": F.silu, "gelu": F.gelu, "none": lambda x: x}
WRAPS = [(False, False), (True, False), (False, True), (True, True)]
SIZES = [(1, 1), (3, 3), (5, 5), (7, 7), (9, 9), (13, 13), (1, 7), (7, 1), (3, 11), (11, 5)]
# Grids smaller than the reach, a line, one column, and more columns than a segment has.
SHAPES = [(2, 7, 14, 32), (3, 2, 3, 16), (1, 1, 1, 16), (2, 1, 40, 16), (1, 30, 1, 48), (1, 3, 150, 16)]


def convolved(
    z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, activation: str, wrap: tuple[bool, bool]
) -> torch.Tensor:
    """With what is beyond the edges written out: zeros, or the points of the ring."""
    for axis, size, is_ring in ((1, weight.shape[2], wrap[0]), (2, weight.shape[3], wrap[1])):
        at = torch.arange(-(size // 2), z.shape[axis] + size // 2)
        inside = ((at >= 0) & (at < z.shape[axis])) | is_ring
        along = inside.to(z).view(-1, *[1] * (3 - axis))
        z = z.index_select(axis, at % z.shape[axis]) * along
    found = F.conv2d(z.movedim(-1, 1), weight, bias, groups=z.shape[-1])
    return ACTIVATIONS[activation](found.movedim(1, -1))


def inputs_of(shape: tuple[int, ...], taps: tuple[int, int]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    E = shape[-1]
    return [torch.randn(shape), torch.randn(E, 1, *taps) / max(taps), torch.randn(E)]


def value_and_gradients(
    operation: object, inputs: list[torch.Tensor], dtype: torch.dtype, *rest: object
) -> list[torch.Tensor]:
    leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in inputs]
    value = operation(*leaves, *rest)  # type: ignore[operator]
    direction = torch.randn(value.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    return [value.detach(), *torch.autograd.grad(value, leaves, direction)]


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an operator leaves unwritten is NaN."""
    for name in ("_with_room", "_empty"):
        allocate = getattr(dense, name)
        monkeypatch.setattr(dense, name, lambda like, allocate=allocate: allocate(like).fill_(float("nan")))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("taps", SIZES)
def test_value_and_gradients_are_torchs_in_float64(taps: tuple[int, int], activation: str) -> None:
    for shape in SHAPES:
        inputs = inputs_of(shape, taps)
        for wrap in WRAPS:
            expected = value_and_gradients(convolved, inputs, torch.float64, activation, wrap)
            found = value_and_gradients(depthwise_conv, inputs, torch.float32, activation, wrap)
            for one, right in zip(found, expected, strict=True):
                assert (one.double() - right).abs().max() < 4e-6 * right.abs().max().clamp(min=1), (shape, wrap)


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("taps", [(3, 3), (5, 5), (7, 7), (1, 9)])
def test_any_number_of_threads_gives_the_same_bits(taps: tuple[int, int], wrap: tuple[bool, bool]) -> None:
    inputs = inputs_of((3, 19, 21, 80), taps)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(value_and_gradients(depthwise_conv, inputs, torch.float32, "gelu", wrap))
    assert all(torch.equal(*pair) for other in found[1:] for pair in zip(found[0], other, strict=True))


def test_kernel_takes_up_to_thirteen_taps_along_an_axis_and_torch_more() -> None:
    for taps, is_fused in (((13, 13), True), ((15, 3), False), ((3, 15), False)):
        z, weight, bias = inputs_of((1, 9, 8, 16), taps)
        value = depthwise_conv(z.requires_grad_(), weight, bias, "gelu", (True, False))
        assert ("depthwise_conv" in type(value.grad_fn).__name__) == is_fused
        right = convolved(z.double(), weight.double(), bias.double(), "gelu", (True, False))
        assert torch.allclose(value.double(), right, atol=1e-5)


@pytest.mark.parametrize("wrap", WRAPS)
def test_what_the_kernel_does_not_take_is_plain_torch(wrap: tuple[bool, bool]) -> None:
    for dtype, channels, limit in (
        (torch.float64, 16, 1e-12),
        (torch.bfloat16, 16, 5e-2),
        (torch.float16, 16, 5e-3),
        (torch.float32, 18, 1e-5),
    ):
        inputs = [one.to(dtype) for one in inputs_of((2, 3, 4, channels), (5, 7))]
        found = value_and_gradients(depthwise_conv, inputs, dtype, "silu", wrap)
        exact = value_and_gradients(convolved, inputs, torch.float64, "silu", wrap)
        for one, right in zip(found, exact, strict=True):
            assert one.dtype == dtype
            assert (one.double() - right).abs().max() < limit * right.abs().max().clamp(min=1)


@pytest.mark.parametrize("wrap", WRAPS)
def test_gradcheck(wrap: tuple[bool, bool]) -> None:
    leaves = [one.double().requires_grad_() for one in inputs_of((1, 2, 3, 2), (5, 3))]
    for activation in ACTIVATIONS:

        def convolve(
            z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, activation: str = activation
        ) -> torch.Tensor:
            return depthwise_conv(z, weight, bias, activation, wrap)

        assert torch.autograd.gradcheck(convolve, leaves)


def test_strided_inputs_and_gradients() -> None:
    def other_way_round(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    z, weight, bias = inputs_of((2, 5, 7, 32), (5, 5))
    leaf = other_way_round(z).requires_grad_()
    for given in (other_way_round(torch.randn(2, 5, 7, 32)), torch.ones(1).expand(2, 5, 7, 32)):
        found, expected = (
            torch.autograd.grad(one(leaf, weight, bias, "gelu", (False, True)), leaf, given)[0]
            for one in (depthwise_conv, convolved)
        )
        assert torch.allclose(found, expected, atol=1e-4)


def test_what_is_not_finite_reaches_what_its_taps_meet_and_nothing_else() -> None:
    inputs = inputs_of((1, 9, 9, 16), (5, 5))
    inputs[0][0, 4, 4, 7] = float("nan")
    fused, plain = (
        value_and_gradients(one, inputs, dtype, "gelu", (False, True))
        for one, dtype in ((depthwise_conv, torch.float32), (convolved, torch.float64))
    )
    for found, expected in zip(fused, plain, strict=True):
        assert torch.equal(found.isfinite(), expected.isfinite())


def test_parameters_that_do_not_fit_are_an_error_and_nothing_is_read_beyond_them() -> None:
    z, weight, bias = inputs_of((1, 3, 4, 16), (5, 5))
    for wrong in ((weight[:8], bias), (weight, bias[:8]), (weight.bfloat16(), bias.bfloat16())):
        with pytest.raises(RuntimeError):
            depthwise_conv(z, *wrong, "gelu")
    assert torch.equal(depthwise_conv(z, weight[..., 1:4, 1:4], bias), conv_silu(z, weight[..., 1:4, 1:4], bias))


@pytest.mark.slow
def test_opcheck() -> None:
    inputs = [tensor.requires_grad_() for tensor in inputs_of((1, 3, 4, 16), (1, 5))]
    extra = ("gelu", [True, False], "cpu")
    torch.library.opcheck(torch.ops.geomano_hpc.depthwise_conv.default, (*inputs, *extra))
    fixed = [tensor.detach() for tensor in inputs]
    backward = torch.ops.geomano_hpc.depthwise_conv_backward.default
    torch.library.opcheck(backward, (torch.ones_like(fixed[0]), *fixed, *extra))
