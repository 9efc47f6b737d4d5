"""What stands between the matrix products of a layer: the C++ kernel against torch in float64."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from geomano_hpc.errors import BackendError
from geomano_hpc.kernels import conv_silu, cpu_extension, dense, gelu, norm_gate

Operation = Callable[..., torch.Tensor]
EPSILON = 1e-5


def convolve(z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.silu(F.conv2d(z.movedim(-1, 1), weight, bias, padding=1, groups=len(weight)).movedim(1, -1))


def gate(y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.silu(F.layer_norm(y, weight.shape, weight, bias, EPSILON)) * F.silu(z)


def fused_gate(y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return norm_gate(y, z, weight, bias, EPSILON)


# The operator, torch's own way, and the inputs for a grid.
OPERATIONS: dict[str, tuple[Operation, Operation]] = {
    "conv_silu": (conv_silu, convolve),
    "norm_gate": (fused_gate, gate),
    "gelu": (gelu, F.gelu),
}
SHAPES = [(2, 7, 13, 32), (1, 1, 5, 16), (2, 5, 1, 16), (3, 2, 2, 48), (1, 1, 1, 16), (1, 9, 10, 64)]


def inputs_of(name: str, shape: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    E = shape[-1]
    if name == "conv_silu":
        return [torch.randn(shape), torch.randn(E, 1, 3, 3), torch.randn(E)]
    if name == "norm_gate":
        return [3 * torch.randn(shape) + 1, 4 * torch.randn(shape), torch.randn(E), torch.randn(E)]
    return [3 * torch.randn(shape)]


def value_and_gradients(operation: Operation, inputs: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in inputs]
    value = operation(*leaves)
    direction = torch.linspace(-1, 1, value.numel(), dtype=torch.float64).view(value.shape).to(dtype)
    return [value.detach(), *torch.autograd.grad(value, leaves, direction)]


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an operator leaves unwritten is NaN."""
    for name in ("_with_room", "_empty"):
        allocate = getattr(dense, name)
        monkeypatch.setattr(dense, name, lambda like, allocate=allocate: allocate(like).fill_(float("nan")))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_value_and_gradients_are_torchs_in_float64(name: str, shape: tuple[int, ...]) -> None:
    fused, plain = OPERATIONS[name]
    inputs = inputs_of(name, shape)
    expected = value_and_gradients(plain, inputs, torch.float64)
    for found, right in zip(value_and_gradients(fused, inputs, torch.float32), expected, strict=True):
        assert found.dtype == torch.float32
        assert (found.double() - right).abs().max() < 2e-6 * right.abs().max().clamp(min=1)


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_kernel_computes_it_and_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    inputs = inputs_of(name, (2, 11, 13, 48))
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(value_and_gradients(OPERATIONS[name][0], inputs, torch.float32))
    assert all(torch.equal(*pair) for other in found[1:] for pair in zip(found[0], other, strict=True))
    leaf = inputs[0].requires_grad_()
    assert "geomano" in type(OPERATIONS[name][0](leaf, *inputs[1:]).grad_fn).__name__


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_not_finite_stays_so(name: str, value: float) -> None:
    inputs = inputs_of(name, (1, 5, 6, 16))
    inputs[0][0, 2, 3, 7] = value
    fused, plain = (operation(*inputs)[0, 2, 3, 7].item() for operation in OPERATIONS[name])
    assert math.isnan(fused) if math.isnan(value) else math.isfinite(fused) == math.isfinite(plain)


def test_activations_far_out_do_not_overflow() -> None:
    x = torch.linspace(-1e4, 1e4, 1600).view(100, 16).requires_grad_()
    for fused, plain in ((gelu, F.gelu), (lambda x: norm_gate(torch.ones_like(x), x, *ONES, EPSILON), gated_ones)):
        (found,), (right,) = (torch.autograd.grad(one(x).sum(), x) for one in (fused, plain))
        assert torch.allclose(fused(x), plain(x), rtol=1e-6, atol=1e-6)
        assert torch.allclose(found, right, rtol=1e-5, atol=1e-6)


ONES = (torch.ones(16), torch.ones(16))


def gated_ones(x: torch.Tensor) -> torch.Tensor:
    return gate(torch.ones_like(x), x, *ONES)


@pytest.mark.parametrize("name", OPERATIONS)
def test_strided_inputs(name: str) -> None:
    inputs = inputs_of(name, (2, 5, 7, 32))
    inputs[0] = inputs[0].transpose(1, 2).contiguous().transpose(1, 2)
    assert not inputs[0].is_contiguous()
    fused, plain = OPERATIONS[name]
    assert torch.allclose(fused(*inputs), plain(*inputs), atol=1e-5)


@pytest.mark.parametrize("name", OPERATIONS)
def test_other_precisions_channels_and_backends_are_plain_torch(name: str) -> None:
    fused, plain = OPERATIONS[name]
    for inputs in (
        [tensor.double() for tensor in inputs_of(name, (1, 3, 4, 16))],
        [tensor.bfloat16() for tensor in inputs_of(name, (1, 3, 4, 16))],
        inputs_of(name, (1, 3, 4, 18)),
    ):
        assert torch.equal(fused(*inputs), plain(*inputs))


def test_backend_by_name_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 16, requires_grad=True)
    assert type(gelu(x, "torch").grad_fn).__name__ == "GeluBackward0"
    monkeypatch.setattr(cpu_extension, "unavailable_because", lambda: "no compiler")
    dense.choose_backend.__globals__["_choose"].cache_clear()
    with pytest.raises(BackendError, match="'cpu' is not available: no compiler"):
        gelu(x, "cpu")
    dense.choose_backend.__globals__["_choose"].cache_clear()


def test_opcheck() -> None:
    for name in OPERATIONS:
        inputs = [tensor.requires_grad_() for tensor in inputs_of(name, (1, 3, 4, 16))]
        extra = (EPSILON,) if name == "norm_gate" else ()
        torch.library.opcheck(getattr(torch.ops.geomano_hpc, name).default, (*inputs, *extra))
        fixed = [tensor.detach() for tensor in inputs]
        backward = getattr(torch.ops.geomano_hpc, f"{name}_backward").default
        torch.library.opcheck(backward, (torch.ones_like(fixed[0]), *fixed, *extra))
