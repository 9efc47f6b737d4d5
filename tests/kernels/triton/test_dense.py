"""The dense parts in Triton's interpreter against torch in float64, through the operators that models call.

As in test_triton_scan.py the checks run in a process of their own, which `test_in_the_interpreter` starts on this file.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from geomano_hpc.kernels import conv_silu, gate, gelu, layer_norm, negative_exp, norm_gate
from tests.support.interpreter import INTERPRETED, NEWER, NO_NEWER, check_in_the_interpreter

pytest.importorskip("triton")
Operation = Callable[..., torch.Tensor]
EPSILON = 1e-5

if not INTERPRETED:

    @pytest.mark.interpreter
    @pytest.mark.slow(60)
    def test_in_the_interpreter() -> None:
        """Runs every check of this file."""
        check_in_the_interpreter(__file__)

    @pytest.mark.interpreter
    @pytest.mark.skipif(not NEWER, reason=NO_NEWER)
    def test_chosen_checks_in_the_interpreter_of_a_newer_triton() -> None:
        check_in_the_interpreter(__file__, "-k", "in_float64 or same_bits", newer=True)

else:
    import numpy as np
    from torch.utils._python_dispatch import TorchDispatchMode
    from triton.runtime import interpreter

    from geomano_hpc.kernels.audit import traffic
    from geomano_hpc.kernels.triton import launching
    from geomano_hpc.kernels.triton.dense import host
    from geomano_hpc.models.geomano import GeomanoConfig, GeoMaNOLayer
    from geomano_hpc.models.parts import local

    def convolve(z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.silu(F.conv2d(z.movedim(-1, 1), weight, bias, padding=1, groups=len(weight)).movedim(1, -1))

    def normalise(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, EPSILON)

    def normalise_and_gate(y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.silu(normalise(y, weight, bias)) * F.silu(z)

    # The operator, and torch's own way.
    OPERATIONS: dict[str, tuple[Operation, Operation]] = {
        "conv_silu": (partial(conv_silu, backend="triton"), convolve),
        "norm_gate": (partial(norm_gate, epsilon=EPSILON, backend="triton"), normalise_and_gate),
        "gate": (partial(gate, backend="triton"), lambda y, z: y * F.silu(z)),
        "layer_norm": (partial(layer_norm, epsilon=EPSILON, backend="triton"), normalise),
        "gelu": (partial(gelu, backend="triton"), F.gelu),
        "negative_exp": (partial(negative_exp, backend="triton"), lambda x: -torch.exp(x)),
    }
    KERNELS = {
        "conv_silu": {"conv_silu_kernel", "conv_silu_backward_kernel", "sum_parts_kernel"},
        "norm_gate": {"norm_gate_kernel", "norm_gate_backward_kernel", "sum_parts_kernel"},
        "gate": {"gate_kernel", "gate_backward_kernel"},
        "layer_norm": {"layer_norm_kernel", "layer_norm_backward_kernel", "sum_parts_kernel"},
        "gelu": {"gelu_kernel", "gelu_backward_kernel"},
        "negative_exp": {"negative_exp_kernel"},
    }
    # One point, a line, a column, more rows and columns than a program takes, channels that fill no block.
    SHAPES = [(1, 1, 1, 5), (2, 1, 19, 37), (1, 19, 1, 37), (2, 7, 13, 5), (1, 18, 17, 96), (2, 3, 2, 64)]
    LOW = [torch.bfloat16, torch.float16]
    UNIT = 2**-7  # in bfloat16's last place: the interpreter cuts off what a GPU rounds

    def inputs_of(name: str, shape: tuple[int, ...]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        E = shape[-1]
        if name == "conv_silu":
            return [torch.randn(shape), torch.randn(E, 1, 3, 3), torch.randn(E)]
        if name == "norm_gate":
            return [3 * torch.randn(shape) + 1, 4 * torch.randn(shape), torch.randn(E), torch.randn(E)]
        if name == "layer_norm":
            return [3 * torch.randn(shape) + 1, torch.randn(E), torch.randn(E)]
        if name == "gate":
            return [2 * torch.randn(shape), 4 * torch.randn(shape)]
        return [2 * torch.randn(shape)]

    def value_and_gradients(
        operation: Operation, inputs: list[torch.Tensor], precision: torch.dtype = torch.float32
    ) -> list[torch.Tensor]:
        """The gradients of a direction that the given precision has, too."""
        leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
        value = operation(*leaves)
        direction = torch.randn(value.shape, generator=torch.Generator().manual_seed(1)).to(precision).to(value.dtype)
        return [value.detach(), *torch.autograd.grad(value, leaves, direction)]

    def expected_of(
        name: str, inputs: list[torch.Tensor], precision: torch.dtype = torch.float32
    ) -> list[torch.Tensor]:
        return value_and_gradients(OPERATIONS[name][1], [tensor.double() for tensor in inputs], precision)

    def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float) -> None:
        for one, right in zip(found, expected, strict=True):
            assert (one.double() - right).abs().max() < tolerance * right.abs().max().clamp(min=1)

    @pytest.fixture(autouse=True)
    def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
        """The names of the kernels that ran; memory that nobody wrote is NaN."""
        names: set[str] = set()
        launch, empty = launching.launch, torch.empty

        def noted(kernel: Any, *rest: Any) -> None:
            names.add(kernel.fn.__name__)
            launch(kernel, *rest)

        def poisoned(*arguments: Any, **options: Any) -> torch.Tensor:
            tensor = empty(*arguments, **options)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        with monkeypatch.context() as patches, traffic.patched_once():
            patches.setattr(launching, "launch", noted)
            patches.setattr(torch, "empty", poisoned)
            yield names

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("name", OPERATIONS)
    def test_value_and_gradients_are_torchs_in_float64(name: str, shape: tuple[int, ...], launched: set[str]) -> None:
        inputs = inputs_of(name, shape)
        assert_close(value_and_gradients(OPERATIONS[name][0], inputs), expected_of(name, inputs), 2e-6)
        assert launched == KERNELS[name]

    @pytest.mark.parametrize("dtype", LOW)
    @pytest.mark.parametrize("name", OPERATIONS)
    def test_low_precision_with_parameters_in_either(name: str, dtype: torch.dtype) -> None:
        """Float32 inside: what is off is the rounding of the result."""
        lowered = [tensor.to(dtype) for tensor in inputs_of(name, (2, 3, 5, 24))]
        for parameters in (torch.float32, dtype):
            inputs = [one.to(parameters) if one.shape[0] == 24 else one for one in lowered]
            found = value_and_gradients(OPERATIONS[name][0], inputs, dtype)
            assert [one.dtype for one in found] == [dtype, *(one.dtype for one in inputs)]
            assert_close(found, expected_of(name, inputs, dtype), UNIT if dtype == torch.bfloat16 else 1e-3)

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_two_runs_give_the_same_bits(name: str) -> None:
        inputs = inputs_of(name, (2, 9, 18, 20))
        runs = [value_and_gradients(OPERATIONS[name][0], inputs) for _ in range(2)]
        assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))

    class Seen(TorchDispatchMode):
        """The operators of ours that torch dispatches."""

        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, function: Any, _types: Any, arguments: Any = (), options: Any = None) -> Any:
            if function.namespace == "geomano_hpc":
                self.names.append(function.overloadpacket.__name__)
            return function(*arguments, **(options or {}))

    @pytest.mark.parametrize("name", ["conv_silu", "norm_gate", "gate", "layer_norm", "gelu"])
    def test_who_looks_sees_an_operator_which_gives_the_same_bits(name: str) -> None:
        inputs = inputs_of(name, (1, 3, 4, 20))
        straight = value_and_gradients(OPERATIONS[name][0], inputs)
        with Seen() as seen:
            by_operator = value_and_gradients(OPERATIONS[name][0], inputs)
        assert seen.names == [name, f"{name}_backward"]
        assert all(torch.equal(*pair) for pair in zip(straight, by_operator, strict=True))
        leaf = inputs[0].requires_grad_()
        value = OPERATIONS[name][0](leaf, *inputs[1:])
        (slope,) = torch.autograd.grad(value.square().sum(), leaf, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            slope.sum().backward()

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    @pytest.mark.parametrize("name", OPERATIONS)
    def test_what_is_not_finite_stays_so(name: str, value: float) -> None:
        """In every value and gradient that it reaches in float64 mathematics."""
        inputs = inputs_of(name, (1, 5, 6, 5))
        inputs[0][0, 2, 3, 4] = value
        for found, right in zip(
            value_and_gradients(OPERATIONS[name][0], inputs), expected_of(name, inputs), strict=True
        ):
            assert torch.equal(found.isfinite(), right.isfinite())

    @pytest.mark.parametrize("name", ["conv_silu", "norm_gate", "gate", "layer_norm", "gelu"])
    def test_strided_inputs_and_gradients(name: str) -> None:
        def other_way_round(x: torch.Tensor) -> torch.Tensor:
            return x.transpose(1, 2).contiguous().transpose(1, 2)

        inputs = inputs_of(name, (2, 5, 7, 12))
        leaf = other_way_round(inputs[0]).requires_grad_()
        for given in (other_way_round(torch.randn(2, 5, 7, 12)), torch.ones(1).expand(2, 5, 7, 12)):
            found, expected = (
                torch.autograd.grad(operation(leaf, *inputs[1:]), leaf, given)[0] for operation in OPERATIONS[name]
            )
            assert torch.allclose(found, expected, atol=1e-4)

    def test_what_triton_does_not_take_is_plain_torch(launched: set[str]) -> None:
        for name, (fused, plain) in OPERATIONS.items():
            inputs = inputs_of(name, (1, 3, 4, 16))
            for given in (
                [one.double() for one in inputs],
                [one[:0] for one in inputs] if len(inputs) == 1 else inputs,
            ):
                if given is not inputs:
                    assert torch.equal(fused(*given), plain(*given))
            compiled = torch.compile(fused, backend="eager", fullgraph=True)
            assert torch.equal(compiled(*inputs), plain(*inputs))
            tangent = torch.func.jvp(lambda x, f=fused, rest=inputs[1:]: f(x, *rest), (inputs[0],), (inputs[0],))[1]
            assert tangent.abs().max() > 0
        assert not launched

    @pytest.mark.parametrize("name", ["conv_silu", "norm_gate", "gate", "layer_norm", "gelu"])
    def test_under_autocast_the_result_is_torchs_as_the_next_matrix_product_takes_it(
        name: str, launched: set[str]
    ) -> None:
        """Activations from a matrix product are bfloat16 then; the pre-norm's are the float32 of the residual."""
        inputs = inputs_of(name, (1, 4, 5, 24))
        lowered = [one if one.shape[0] == 24 or name == "layer_norm" else one.bfloat16() for one in inputs]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, torchs = (value_and_gradients(one, lowered, torch.bfloat16) for one in OPERATIONS[name])
        assert found[0].dtype == torch.bfloat16
        assert [one.dtype for one in found[1:]] == [one.dtype for one in lowered]
        exact = expected_of(name, lowered, torch.bfloat16)
        for one, other, right in zip(found, torchs, exact, strict=True):
            limit = UNIT * right.abs().max().clamp(min=1)
            off = (other.bfloat16().double() - right).abs().max()
            assert (one.double() - right).abs().max() < max(limit, 1.1 * off)
        assert launched == KERNELS[name]

    def test_layer_is_that_of_the_reference(launched: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """With what is computed again in the backward, and the gradient of dt, B and C as one."""

        def run(backend: str) -> list[torch.Tensor]:
            torch.manual_seed(0)
            layer = GeoMaNOLayer(GeomanoConfig(embedding=8, dstate=2, scan_backend=backend))
            z = torch.randn(1, 3, 2, 8, requires_grad=True)
            out = layer(z)
            out.square().sum().backward()
            return [out.detach(), z.grad, *(parameter.grad for parameter in layer.parameters())]

        found = run("triton")
        assert launched >= set.union(*KERNELS.values()) - KERNELS["gate"]
        monkeypatch.setattr(local, "depthwise_conv", lambda *inputs: convolve(*inputs[:3]))
        for one, right in zip(found, run("torch"), strict=True):
            assert torch.allclose(one, right, atol=1e-5 * float(right.abs().max().clamp(min=1)))

    def bytes_of(operation: Callable[[], Any]) -> tuple[int, int]:
        """Loaded and stored: each address once per launch, which is what main memory gives, and once per program of it,
        which is what the second-level cache gives."""
        builder, launch = interpreter.InterpreterBuilder, launching.launch
        load, store = builder.create_masked_load, builder.create_masked_store
        seen: list[tuple[Any, int, int]] = []
        totals = [0, 0]

        def note(self: Any, pointers: Any, mask: Any, kind: int) -> None:
            here = mask.data.astype(bool) if mask.data.shape == pointers.data.shape else ...
            addresses = pointers.data[here].ravel().astype(np.int64)
            if addresses.size:
                width = pointers.get_element_ty().primitive_bitwidth // 8
                seen.append((addresses * 2 + kind, width, self.grid_idx[0]))

        def counted_load(self: Any, pointers: Any, mask: Any, *rest: Any, **options: Any) -> Any:
            note(self, pointers, mask, 0)
            return load(self, pointers, mask, *rest, **options)

        def counted_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
            note(self, pointers, mask, 1)
            return store(self, pointers, value, mask, *rest, **options)

        def counted_launch(*arguments: Any) -> None:
            seen.clear()
            launch(*arguments)
            for width in {width for _, width, _ in seen}:
                mine = [(addresses, program) for addresses, size, program in seen if size == width]
                totals[0] += width * np.unique(np.concatenate([addresses for addresses, _ in mine])).size
                for one in {program for _, program in mine}:
                    of_one = [addresses for addresses, program in mine if program == one]
                    totals[1] += width * np.unique(np.concatenate(of_one)).size

        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(builder, "create_masked_load", counted_load)
            patches.setattr(builder, "create_masked_store", counted_store)
            patches.setattr(launching, "launch", counted_launch)
            operation()
        return totals[0], totals[1]

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_bytes_are_within_fifteen_percent_of_the_minimum(dtype: torch.dtype) -> None:
        """Of main memory, with the sums of programs. Of the second-level cache, too, but for the convolution's
        gradients, which read two more rows and columns of z, and one of dx, on each side."""
        shape = (1, 48, 48, 32)  # as many rows and columns as three programs of the convolution
        y, z, direction = (torch.randn(shape).to(dtype) for _ in range(3))
        weight, bias, taps = torch.randn(32), torch.randn(32), torch.randn(32, 1, 3, 3)
        size = z.numel() * z.itemsize
        calls: dict[str, tuple[int, Callable[[], Any]]] = {
            "conv": (2, lambda: host.conv_silu(z, taps, bias)),
            "conv backward": (3, lambda: host.conv_silu_backward(direction, z, taps, bias)),
            "norm": (2, lambda: host.layer_norm(z, weight, bias, EPSILON, dtype)),
            "norm backward": (3, lambda: host.layer_norm_backward(direction, z, weight, bias, EPSILON)),
            "norm and gate": (3, lambda: host.norm_gate(y, z, weight, bias, EPSILON)),
            "norm and gate backward": (5, lambda: host.norm_gate_backward(direction, y, z, weight, bias, EPSILON)),
            "gate": (3, lambda: host.gate(y, z)),
            "gate backward": (5, lambda: host.gate_backward(direction, y, z)),
            "gelu": (2, lambda: host.gelu(z)),
            "gelu backward": (3, lambda: host.gelu_backward(direction, z)),
        }
        for name, (tensors, call) in calls.items():
            memory, cache = (count / (tensors * size) for count in bytes_of(call))
            print(f"{name:22} {str(dtype)[6:]:9} memory {memory:.3f} cache {cache:.3f}")
            assert memory < 1.15, name
            assert cache < (1.35 if name == "conv backward" else 1.15), name
