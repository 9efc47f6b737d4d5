"""What stands between the matrix products of a layer: the C++ kernel against torch in float64."""

import math
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from geomano_hpc.errors import BackendError
from geomano_hpc.kernels import backends, conv_silu, gate, gelu, norm_gate
from geomano_hpc.kernels.cpu import dense
from geomano_hpc.kernels.cpu import extension as cpu_extension

Operation = Callable[..., torch.Tensor]
EPSILON = 1e-5


def convolve(z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.silu(F.conv2d(z.movedim(-1, 1), weight, bias, padding=1, groups=len(weight)).movedim(1, -1))


def plain_norm_gate(y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.silu(F.layer_norm(y, weight.shape, weight, bias, EPSILON)) * F.silu(z)


def fused_norm_gate(y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return norm_gate(y, z, weight, bias, EPSILON)


# The operator, torch's own way, and the inputs for a grid.
OPERATIONS: dict[str, tuple[Operation, Operation]] = {
    "conv_silu": (conv_silu, convolve),
    "norm_gate": (fused_norm_gate, plain_norm_gate),
    "gate": (gate, lambda y, z: y * F.silu(z)),
    "gelu": (gelu, F.gelu),
}
SHAPES = [(2, 7, 13, 32), (1, 1, 5, 16), (2, 150, 1, 16), (3, 2, 2, 48), (1, 1, 1, 16), (1, 9, 10, 64), (1, 2, 261, 16)]


def inputs_of(name: str, shape: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    E = shape[-1]
    if name == "conv_silu":
        return [torch.randn(shape), torch.randn(E, 1, 3, 3), torch.randn(E)]
    if name == "norm_gate":
        return [3 * torch.randn(shape) + 1, 4 * torch.randn(shape), torch.randn(E), torch.randn(E)]
    if name == "gate":
        return [3 * torch.randn(shape), 4 * torch.randn(shape)]
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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_not_finite_stays_so(name: str, value: float) -> None:
    """In every value and gradient that it reaches in float64 mathematics."""
    inputs = inputs_of(name, (1, 5, 6, 16))
    inputs[0][0, 2, 3, 7] = value
    fused, plain = (
        value_and_gradients(operation, inputs, dtype)
        for operation, dtype in zip(OPERATIONS[name], (torch.float32, torch.float64), strict=True)
    )
    for found, expected in zip(fused, plain, strict=True):
        assert torch.equal(found.isfinite(), expected.isfinite())


@pytest.mark.parametrize("far", [1e4, 1e30, 3e38])
def test_activations_far_out_do_not_overflow(far: float) -> None:
    x = (far * torch.linspace(-1, 1, 1600)).view(100, 16).requires_grad_()
    exact = x.detach().double().requires_grad_()
    for fused, plain in ((gelu, exact_gelu), (fused_norm_gate_of_ones, norm_gate_of_ones), (gate_of_ones, silu)):
        value, right = fused(x), plain(exact)
        (slope,), (right_slope,) = torch.autograd.grad(value.sum(), x), torch.autograd.grad(right.sum(), exact)
        assert torch.allclose(value.double(), right, rtol=1e-6, atol=1e-6)
        assert torch.allclose(slope.double(), right_slope, rtol=1e-5, atol=1e-6)


def exact_gelu(x: torch.Tensor) -> torch.Tensor:
    """x Phi(x). Not F.gelu: in float32 far out that one is infinite on some CPUs."""
    return 0.5 * x * torch.erfc(-x / math.sqrt(2))


def fused_norm_gate_of_ones(x: torch.Tensor) -> torch.Tensor:
    return norm_gate(torch.ones_like(x), x, *ONES, EPSILON)


def norm_gate_of_ones(x: torch.Tensor) -> torch.Tensor:
    """Numbers that are all the same have the norm 0, and with it weight and bias of one give a one."""
    return torch.sigmoid(torch.ones_like(x)) * silu(x)


def gate_of_ones(x: torch.Tensor) -> torch.Tensor:
    return gate(torch.ones_like(x), x)


def silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


ONES = (torch.ones(16), torch.ones(16))


@pytest.mark.parametrize("name", OPERATIONS)
def test_strided_inputs_and_gradients(name: str) -> None:
    def other_way_round(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    inputs = inputs_of(name, (2, 5, 7, 32))
    direction = other_way_round(torch.randn(2, 5, 7, 32))
    leaf = other_way_round(inputs[0]).requires_grad_()
    assert not leaf.is_contiguous()
    for given in (direction, torch.ones(1).expand(2, 5, 7, 32)):
        found, expected = (
            torch.autograd.grad(operation(leaf, *inputs[1:]), leaf, given)[0] for operation in OPERATIONS[name]
        )
        assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_the_kernel_does_not_take_is_plain_torch(name: str) -> None:
    fused, plain = OPERATIONS[name]
    for inputs in (
        [tensor.double() for tensor in inputs_of(name, (1, 3, 4, 16))],
        [tensor.bfloat16() for tensor in inputs_of(name, (1, 3, 4, 16))],
        inputs_of(name, (1, 3, 4, 18)),
        inputs_of(name, (0, 3, 4, 16)),
    ):
        assert torch.equal(fused(*inputs), plain(*inputs))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inputs = inputs_of(name, (1, 3, 4, 16))
        assert torch.equal(fused(*inputs), plain(*inputs))


@pytest.mark.parametrize("name", OPERATIONS)
def test_forward_mode_is_torchs(name: str) -> None:
    first, *others = inputs_of(name, (1, 3, 4, 16))
    found, expected = (
        torch.func.jvp(lambda x, one=operation: one(x, *others), (first,), (first,))[1]
        for operation in OPERATIONS[name]
    )
    assert expected.abs().max() > 0
    assert torch.equal(found, expected)


def test_parameters_that_do_not_fit_are_an_error_and_nothing_is_read_beyond_them() -> None:
    z, weight, bias = inputs_of("conv_silu", (1, 3, 4, 16))
    for wrong in ((weight[:8], bias), (weight, bias[:8]), (weight.bfloat16(), bias.bfloat16())):
        with pytest.raises(RuntimeError):
            conv_silu(z, *wrong)
    y, z, weight, bias = inputs_of("norm_gate", (2, 3, 4, 16))
    with pytest.raises(RuntimeError):
        norm_gate(y, z, weight.double(), bias.double(), EPSILON)
    assert torch.equal(
        norm_gate(y, z[:1], weight, bias, EPSILON), plain_norm_gate(y, z[:1], weight, bias)
    )  # torch broadcasts
    assert torch.equal(gate(y, z[:1]), y * F.silu(z[:1]))


@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_but_what_autograd_saves_is_kept(name: str) -> None:
    """Else neither checkpointing nor the end of a backward would let go of it."""
    first, *others = inputs_of(name, (1, 3, 4, 16))
    middle = first.requires_grad_() * 2
    gone = weakref.ref(middle)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.shape, lambda shape: torch.zeros(shape)):
        result = OPERATIONS[name][0](middle, *others)
    del middle
    assert result.requires_grad
    assert gone() is None


def test_backend_by_name_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 16, requires_grad=True)
    assert type(gelu(x, "torch").grad_fn).__name__ == "GeluBackward0"
    monkeypatch.setattr(cpu_extension, "unavailable_because", lambda: "no compiler")
    monkeypatch.setattr(backends, "_choose", backends._choose.__wrapped__)  # which remembers nothing
    with pytest.raises(BackendError, match="'cpu' is not available: no compiler"):
        gelu(x, "cpu")


@pytest.mark.slow
def test_opcheck() -> None:
    for name in OPERATIONS:
        inputs = [tensor.requires_grad_() for tensor in inputs_of(name, (1, 3, 4, 16))]
        extra = (EPSILON, "cpu") if name == "norm_gate" else ("cpu",)
        torch.library.opcheck(getattr(torch.ops.geomano_hpc, name).default, (*inputs, *extra))
        fixed = [tensor.detach() for tensor in inputs]
        backward = getattr(torch.ops.geomano_hpc, f"{name}_backward").default
        torch.library.opcheck(backward, (torch.ones_like(fixed[0]), *fixed, *extra))
