"""The 1d kernels, forward and backward, in Triton's interpreter against the float64 reference.

Triton reads TRITON_INTERPRET when kernels are defined, and other tests define them for compilation. So the checks
below run in a process of their own, which `test_in_the_interpreter` starts on this file.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from geomano_hpc.kernels.inputs import ScanInputs
from geomano_hpc.kernels.orders import ORDER_SETS, ScanOrder
from geomano_hpc.kernels.reference import geo_scan_reference, time_step

pytest.importorskip("triton")

if os.environ.get("TRITON_INTERPRET") != "1":

    @pytest.mark.interpreter
    @pytest.mark.slow(25)
    def test_in_the_interpreter() -> None:
        """Runs every check of this file."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__]
        variables = {**inherited, "TRITON_INTERPRET": "1"}
        run = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
        assert "passed" in run.stdout
        assert "skipped" not in run.stdout

else:
    import numpy as np
    import triton
    from triton.runtime import interpreter

    from geomano_hpc.kernels.triton.launching import launch
    from geomano_hpc.kernels.triton.sequence_backward import sequence_backward_kernel
    from geomano_hpc.kernels.triton.sequence_forward import sequence_forward_kernel

    ALL_ORDERS = tuple(ScanOrder.from_code(code) for code in range(8))
    PAPER = ORDER_SETS["paper"]
    OPTIONS = {"num_warps": 1, "num_stages": 1, "enable_fp_fusion": True}

    def scan_whole_tiles(self: Any, inputs: Any) -> list[Any]:
        """The interpreter's scan, with the combine function on whole tiles in log2 steps instead of on scalars."""
        data = [tensor.handle.data for tensor in inputs]
        length, step = data[0].shape[self.axis], 1
        index = np.arange(length).reshape([-1 if axis == self.axis else 1 for axis in range(data[0].ndim)])

        def tensors(arrays: list[np.ndarray]) -> list[Any]:
            return [self.to_tensor(array, tensor.dtype) for array, tensor in zip(arrays, inputs, strict=True)]

        while step < length:
            earlier = tensors([np.roll(array, step, self.axis) for array in data])
            combined = self.combine_fn.fn(*earlier, *tensors(data))
            data = [np.where(index >= step, c.handle.data, d) for c, d in zip(combined, data, strict=True)]
            step *= 2
        return tensors(data)

    @pytest.fixture(autouse=True)
    def _fast_interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Scans on whole tiles; memory that nobody wrote is NaN."""
        monkeypatch.setattr(interpreter.ScanOps, "generic_scan", scan_whole_tiles)
        with np.errstate(invalid="ignore"):
            yield

    def poison(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full(shape, float("nan"), dtype=dtype)

    def make(
        batch: int, height: int, width: int, E: int, N: int, K: int, rank: int, R: bool, dtype: torch.dtype
    ) -> ScanInputs:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        grid = (batch, height, width)
        dt_B_C = normal(*grid, K, (rank or E) + 2 * N).to(dtype)  # views of one tensor, as the model makes them
        dt, B, C = dt_B_C.split([rank or E, N, N], dim=-1)
        R_KEN = normal(K, E, N) if R else None
        weight = normal(K, E, rank) / rank**0.5 if rank else None
        A = -torch.exp(normal(K, E, N))
        return ScanInputs(normal(*grid, E).to(dtype), dt, A, B, C, normal(K, E), R_KEN, normal(K, E) - 1, weight)

    def reference(
        dy: torch.Tensor, inputs: ScanInputs, orders: tuple[ScanOrder, ...], correction: str
    ) -> tuple[torch.Tensor, ScanInputs]:
        leaves = ScanInputs(*(None if t is None else t.double().requires_grad_() for t in inputs))  # type: ignore[arg-type]
        dt = time_step(leaves.dt, leaves.dt_weight, leaves.dt_bias)
        y = geo_scan_reference(
            leaves.x, dt, leaves.A, leaves.B, leaves.C,
            D_KE=leaves.D, R_KEN=leaves.R, orders=orders, kind="1d", correction=correction,
        )  # fmt: skip
        y.backward(dy.double())
        return y.detach(), ScanInputs(*(None if t is None else t.grad for t in leaves))  # type: ignore[arg-type]

    def run(
        dy: torch.Tensor, inputs: ScanInputs, orders: tuple[ScanOrder, ...], correction: str,
        chunks: int, lanes: int, steps: int, tile: int, wide: int,
    ) -> tuple[torch.Tensor, ScanInputs]:  # fmt: skip
        """The host side in its simplest form: sweep, main pass, sums by torch."""
        x, dt, A, B, C, D, R, bias, weight = inputs
        batch, height, width, E = x.shape
        K, N = A.shape[0], A.shape[2]
        rank = 0 if weight is None else weight.shape[2]
        points = height * width
        per_chunk = triton.cdiv(triton.cdiv(points, chunks), steps) * steps
        assert triton.cdiv(points, per_chunk) == chunks
        blocks = triton.cdiv(E, lanes)
        programs = K * batch * chunks * blocks
        form = 0 if R is None else {"equation": 1, "state": 2}[correction]
        code = sum(order.code << (3 * k) for k, order in enumerate(orders))
        strides = (dt.stride(2), dt.stride(3), B.stride(2), B.stride(3))
        numbers = (height, width, E, code, *strides, chunks, per_chunk, 0)
        constants = {"RANK": rank, "N": N, "CORRECTION": form, **OPTIONS}
        forward = {**constants, "P": steps, "BE": lanes, "SEQUENCE_TILE": tile}
        parameters = (D, A if R is None else R, bias, bias if weight is None else weight)

        y_part = poison(K, batch, points, E)
        kept = poison(K, batch, triton.cdiv(points, tile), N, E)
        ends, span = poison(K, batch, chunks, N, E), poison(K, batch, chunks, E)
        scratch = poison(programs, 3 * N + triton.cdiv(rank, 4) * 4, lanes)
        arguments: tuple[Any, ...] = (x, dt, A, B, C, *parameters, y_part, kept, ends, span, scratch, batch, *numbers)
        if chunks > 1:
            launch(sequence_forward_kernel, (programs,), arguments, {**forward, "SWEEP": 1, "KEEP": 0})
        launch(sequence_forward_kernel, (programs,), arguments, {**forward, "SWEEP": 0, "KEEP": 1})
        y = y_part.sum(0).view(x.shape)

        slots = triton.cdiv(points, tile) * tile
        wide_blocks = triton.cdiv(E, wide)
        dx_part = poison(K, batch, points, E)
        over_channels = poison(K, batch, wide_blocks, 2 * N + rank, slots)
        of_parameters = poison(K, batch * chunks, 2 * N + 2 + rank, E)
        ddt = poison(batch, height, width, K, E, dtype=dt.dtype)
        if chunks > 1:
            arguments = (dy, dt, A, C, C, *parameters, y_part, kept, ends, span, scratch, batch, *numbers)
            launch(sequence_forward_kernel, (programs,), arguments, {**forward, "SWEEP": 2, "KEEP": 0})
        wide_programs = K * batch * chunks * wide_blocks
        ranks = triton.cdiv(rank, 4) * 4
        scratch = poison(wide_programs, 5 * N + 2 * ranks, wide)
        outputs = (dx_part, over_channels, of_parameters, ddt)
        arguments = (x, dt, A, B, C, *parameters, dy, kept, ends, span, *outputs, scratch, batch, K, *numbers)
        backward = {**constants, "NEEDS_R": int(R is not None), "P": tile, "BE": wide, "LANES": lanes, "GROUP": 4}
        launch(sequence_backward_kernel, (wide_programs,), arguments, backward)

        summed = torch.empty(batch, points, K, 2 * N + rank)
        for k, order in enumerate(orders):
            place = order.turn(torch.arange(points).view(1, height, width)).flatten()
            summed[:, place, k] = over_channels[k, :, :, :, :points].sum(1).transpose(1, 2)
        dB, dC, low = summed.view(batch, height, width, K, -1).split([N, N, rank], dim=-1)
        sums = of_parameters.sum(1).transpose(1, 2)
        return y, inputs._replace(
            x=dx_part.sum(0).view(x.shape), dt=low if rank else ddt, A=sums[..., :N], B=dB, C=dC, D=sums[..., 2 * N],
            R=None if R is None else sums[..., N : 2 * N], dt_bias=sums[..., 2 * N + 1],
            dt_weight=sums[..., 2 * N + 2 :] if rank else None,
        )  # fmt: skip

    def check(
        orders: tuple[ScanOrder, ...] = PAPER[1:2], correction: str = "equation", *, batch: int = 1, height: int = 3,
        width: int = 5, E: int = 6, N: int = 2, rank: int = 2, R: bool = True, chunks: int = 1, lanes: int = 8,
        steps: int = 8, tile: int = 4, wide: int = 8, dtype: torch.dtype = torch.float32, tolerance: float = 3e-6,
    ) -> None:  # fmt: skip
        inputs = make(batch, height, width, E, N, len(orders), rank, R, dtype)
        dy = torch.randn(inputs.x.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        expected_y, expected = reference(dy, inputs, orders, correction)
        y, gradients = run(dy, inputs, orders, correction, chunks, lanes, steps, tile, wide)
        found = {"y": y, **gradients._asdict()}
        for name, want in {"y": expected_y, **expected._asdict()}.items():
            if found[name] is not None:
                want = torch.zeros_like(found[name]).double() if want is None else want  # A at a single position
                assert found[name].shape == want.shape, name
                error = (found[name].double() - want).abs().max() / want.abs().max().clamp_min(1e-30)
                assert error <= tolerance, f"{name} is wrong by {float(error):.1e}"

    def test_all_eight_orders() -> None:
        check(ALL_ORDERS, height=4, width=3, N=1)

    @pytest.mark.parametrize("correction", ["equation", "state"])
    @pytest.mark.parametrize("rank", [0, 3])
    def test_corrections_and_both_kinds_of_time_step(correction: str, rank: int) -> None:
        check(PAPER[2:3], correction, rank=rank, batch=2, E=10)

    @pytest.mark.parametrize("rank", [0, 1])
    def test_without_a_correction(rank: int) -> None:
        check(rank=rank, R=False)

    @pytest.mark.parametrize("rank", [0, 2])
    @pytest.mark.parametrize("correction", ["equation", "state"])
    def test_chunks_of_which_the_last_is_not_full(correction: str, rank: int) -> None:
        check(PAPER[2:3], correction, height=7, width=3, chunks=3, rank=rank)

    @pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 37), (37, 1), (2, 2), (5, 9)])
    def test_odd_sizes(height: int, width: int) -> None:
        check(ALL_ORDERS[5:6], height=height, width=width, N=1)

    @pytest.mark.parametrize("N", [1, 5, 16])
    def test_dstates(N: int) -> None:
        check(PAPER[3:], N=N, chunks=2, E=3)

    @pytest.mark.parametrize("rank", [5, 16, 20])
    def test_ranks(rank: int) -> None:
        check(PAPER[3:], N=1, rank=rank)

    @pytest.mark.parametrize(("lanes", "tile", "wide", "E"), [(32, 8, 64, 70), (32, 8, 32, 8), (64, 8, 64, 70)])
    def test_the_sizes_of_a_gpu(lanes: int, tile: int, wide: int, E: int) -> None:
        check(PAPER[1:2], height=5, width=8, E=E, N=1, chunks=2, lanes=lanes, steps=32, tile=tile, wide=wide)

    @pytest.mark.parametrize("rank", [0, 2])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precisions(dtype: torch.dtype, rank: int) -> None:
        check(PAPER[2:3], dtype=dtype, rank=rank, chunks=2, tolerance=3e-6 if rank else 5e-3)

    @pytest.mark.parametrize("name", ["x", "dt", "C"])
    def test_nan_in_gives_nan_out(name: str) -> None:
        inputs = make(1, 3, 5, 6, 1, 1, 2, True, torch.float32)
        tensor = getattr(inputs, name)
        tensor[(*(size // 2 for size in tensor.shape),)] = float("nan")
        dy = torch.ones_like(inputs.x)
        expected_y, expected = reference(dy, inputs, PAPER[1:2], "equation")
        y, gradients = run(dy, inputs, PAPER[1:2], "equation", 2, 8, 8, 4, 8)
        for field, want in {"y": expected_y, **expected._asdict()}.items():
            found = {"y": y, **gradients._asdict()}[field]
            assert (found.isnan() | ~want.isnan()).all(), field
