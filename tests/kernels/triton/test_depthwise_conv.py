"""Depthwise convolutions of any odd size in Triton's interpreter against torch in float64.

As in test_dense.py the checks run in a process of their own, which `test_in_the_interpreter` starts on this file.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from geomano_hpc.kernels import depthwise_conv
from tests.kernels.test_depthwise_conv import WRAPS, convolved, inputs_of, value_and_gradients
from tests.support.interpreter import INTERPRETED, NEWER, NO_NEWER, check_in_the_interpreter

pytest.importorskip("triton")

if not INTERPRETED:

    @pytest.mark.interpreter
    @pytest.mark.slow(60)
    def test_in_the_interpreter() -> None:
        """Runs every check of this file."""
        check_in_the_interpreter(__file__)

    @pytest.mark.interpreter
    @pytest.mark.skipif(not NEWER, reason=NO_NEWER)
    def test_chosen_checks_in_the_interpreter_of_a_newer_triton() -> None:
        check_in_the_interpreter(__file__, "-k", "rings_and_walls or same_bits", newer=True)

else:
    from geomano_hpc.kernels.audit import traffic
    from geomano_hpc.kernels.triton import launching
    from geomano_hpc.kernels.triton.dense import direct

    KERNELS = {"depthwise_kernel", "depthwise_weights_kernel", "sum_parts_kernel"}
    UNIT = 2**-7  # in bfloat16's last place: the interpreter cuts off what a GPU rounds
    fused = partial(depthwise_conv, backend="triton")

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

    def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float) -> None:
        for one, right in zip(found, expected, strict=True):
            assert (one.double() - right).abs().max() < tolerance * right.abs().max().clamp(min=1)

    @pytest.mark.parametrize("wrap", WRAPS)
    @pytest.mark.parametrize("activation", ["silu", "gelu"])
    def test_rings_and_walls_are_torchs_in_float64(
        activation: str, wrap: tuple[bool, bool], launched: set[str]
    ) -> None:
        inputs = inputs_of((2, 3, 5, 5), (5, 3))
        expected = value_and_gradients(convolved, inputs, torch.float64, activation, wrap)
        assert_close(value_and_gradients(fused, inputs, torch.float32, activation, wrap), expected, 2e-6)
        assert launched == KERNELS

    @pytest.mark.parametrize(
        ("shape", "taps", "wrap"),
        [
            ((1, 2, 3, 16), (7, 7), (True, True)),  # a reach beyond the ring
            ((1, 2, 3, 16), (7, 7), (False, False)),
            ((1, 3, 4, 8), (13, 13), (False, True)),
            ((2, 1, 75, 40), (1, 9), (False, True)),  # a line, channels that fill no block
            ((1, 75, 1, 3), (7, 1), (True, False)),
            ((1, 9, 19, 33), (3, 5), (False, False)),  # more rows and columns than a program takes
            ((1, 6, 9, 4), (3, 3), (True, False)),
        ],
    )
    def test_sizes_are_torchs_in_float64(
        shape: tuple[int, ...], taps: tuple[int, int], wrap: tuple[bool, bool], launched: set[str]
    ) -> None:
        inputs = inputs_of(shape, taps)
        expected = value_and_gradients(convolved, inputs, torch.float64, "silu", wrap)
        assert_close(value_and_gradients(fused, inputs, torch.float32, "silu", wrap), expected, 2e-6)
        assert launched == KERNELS

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_low_precision_with_parameters_in_either(dtype: torch.dtype) -> None:
        """Float32 inside: what is off is the rounding of the result."""
        lowered = [tensor.to(dtype) for tensor in inputs_of((1, 3, 5, 24), (5, 5))]
        for parameters in (torch.float32, dtype):
            inputs = [lowered[0], *(one.to(parameters) for one in lowered[1:])]
            leaves = z, weight, bias = [one.clone().requires_grad_() for one in inputs]
            value = fused(z, weight, bias, "gelu", (True, False))
            direction = torch.randn(value.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
            found = [value, *torch.autograd.grad(value, leaves, direction)]
            assert [one.dtype for one in found] == [dtype, *(one.dtype for one in inputs)]
            exact = z, weight, bias = [one.double().requires_grad_() for one in inputs]
            right = convolved(z, weight, bias, "gelu", (True, False))
            expected = [right, *torch.autograd.grad(right, exact, direction.double())]
            assert_close(found, expected, UNIT if dtype == torch.bfloat16 else 1e-3)

    def test_two_runs_and_who_looks_get_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
        inputs = inputs_of((2, 5, 18, 20), (5, 5))
        runs = [value_and_gradients(fused, inputs, torch.float32, "gelu", (False, True)) for _ in range(2)]
        monkeypatch.setattr(direct, "nobody_looks", lambda _: False)
        runs.append(value_and_gradients(fused, inputs, torch.float32, "gelu", (False, True)))  # as operators
        assert all(torch.equal(*pair) for run in runs[1:] for pair in zip(runs[0], run, strict=True))

    def test_under_autocast_the_result_is_as_the_next_matrix_product_takes_it(launched: set[str]) -> None:
        z, weight, bias = inputs_of((1, 4, 5, 24), (3, 5))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = fused(z.bfloat16(), weight, bias, "gelu", (False, True))
        right = convolved(z.bfloat16().double(), weight.double(), bias.double(), "gelu", (False, True))
        assert found.dtype == torch.bfloat16
        assert_close([found], [right], UNIT)
        assert launched == {"depthwise_kernel"}

    def test_what_triton_does_not_take_is_plain_torch(launched: set[str]) -> None:
        for dtype, taps in ((torch.float64, (5, 5)), (torch.float32, (15, 3))):
            z, weight, bias = (one.to(dtype) for one in inputs_of((1, 3, 4, 16), taps))
            found = fused(z, weight, bias, "gelu", (True, False))
            assert_close([found], [convolved(z, weight, bias, "gelu", (True, False)).double()], 1e-6)
        assert not launched
