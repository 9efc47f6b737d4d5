"""The scan's own kernels have no race, whatever the order of their programs; without its barriers the 2d scan has one.

The checks run in a process of their own (TRITON_INTERPRET), which `test_in_the_interpreter` starts on this file.
"""

import pytest

from tests.support.interpreter import INTERPRETED, check_in_the_interpreter, fast_interpreter

pytest.importorskip("triton")

if not INTERPRETED:

    @pytest.mark.interpreter
    @pytest.mark.slow(60)
    def test_in_the_interpreter() -> None:
        """Runs every check of this file."""
        check_in_the_interpreter(__file__)

else:
    from collections.abc import Iterator
    from typing import Any
    from unittest.mock import patch

    import torch
    from triton.runtime import interpreter

    from geomano_hpc.kernels.audit.races import check as races
    from geomano_hpc.kernels.audit.races.access_layouts import compiled_layouts
    from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
    from geomano_hpc.kernels.orders import ORDER_SETS
    from geomano_hpc.kernels.triton import scan

    @pytest.fixture(autouse=True)
    def _fast() -> Iterator[None]:
        with fast_interpreter():
            yield

    def problem(kind: str, height: int = 11, width: int = 3) -> tuple[ScanInputs, ScanSettings]:
        """More channels than a warp has lanes, of which the last block is not full."""
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        E, N, rank, K = 34, 2, 2, 2
        dt, B, C = normal(1, height, width, K, rank + 2 * N).split([rank, N, N], dim=-1)
        parameters = (normal(K, E), normal(K, E, N), normal(K, E), normal(K, E, rank))
        inputs = ScanInputs(normal(1, height, width, E), dt, -torch.exp(normal(K, E, N)), B, C, *parameters)
        return inputs, ScanSettings(ORDER_SETS["sequence"], kind, "equation")

    def run(inputs: ScanInputs, settings: ScanSettings) -> tuple[Any, ...]:
        y, carries = scan.forward(inputs, settings, True)
        return y, *scan.backward(torch.ones_like(y), inputs, settings, carries, True)

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    def test_no_kernel_of_the_scan_has_a_race(kind: str) -> None:
        with races.checked(compiled_layouts()) as launched:
            run(*problem(kind))
        assert "sum_gradients" in launched
        assert len(set(launched)) >= 4

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    def test_the_order_of_programs_changes_no_bit(kind: str) -> None:
        races.assert_same_bits_in_any_order(lambda: run(*problem(kind)))

    def test_the_wavefront_needs_its_barriers() -> None:
        without = patch.object(interpreter.InterpreterBuilder, "create_barrier", lambda self: None)
        inputs, settings = problem("2d", height=20)
        with races.checked(compiled_layouts()), without, pytest.raises(races.RaceError, match="another thread"):
            scan.forward(inputs, settings, True)
