"""The main pass of the 2d backward, and the sums behind it, in Triton's interpreter against the float64 reference.

The states and adjoint states that the sweeps would leave come from the reference's recursion. Triton reads
TRITON_INTERPRET when kernels are defined, so the checks run in a process of their own on this file.
"""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from geomano_hpc.kernels.orders import ORDER_SETS, ScanOrder
from geomano_hpc.kernels.reference import geo_scan_reference, recursion_2d, time_step

pytest.importorskip("triton")

if os.environ.get("TRITON_INTERPRET") != "1":

    @pytest.mark.interpreter
    @pytest.mark.slow(40)
    def test_in_the_interpreter() -> None:
        """Runs every check of this file."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__]
        run = subprocess.run(
            command, env={**inherited, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
        assert "passed" in run.stdout
        assert "skipped" not in run.stdout

else:
    from geomano_hpc.kernels.triton import sums
    from geomano_hpc.kernels.triton.grid_backward import grid_backward_kernel, scratch_size

    CORRECTIONS = {None: 0, "equation": 1, "state": 2}
    NAMES = ("x", "dt", "A", "B", "C", "D", "R", "bias", "weight")

    def nan(*shape: int) -> torch.Tensor:
        return torch.full(shape, float("nan"))

    def cdiv(a: int, b: int) -> int:
        return -(-a // b)

    def make(
        batch: int, height: int, width: int, E: int, N: int, K: int, rank: int, dtype: torch.dtype
    ) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        grid = (batch, height, width)
        dt, B, C = normal(*grid, K, (rank or E) + 2 * N).to(dtype).split([rank or E, N, N], dim=-1)
        weight = normal(K, E, rank) / 2 if rank else None
        tensors = (normal(*grid, E).to(dtype), dt, -torch.exp(normal(K, E, N)), B, C, normal(K, E), normal(K, E, N))
        return dict(zip(NAMES, (*tensors, normal(K, E), weight), strict=True))

    def reference(dy: torch.Tensor, inputs: dict[str, Any], orders: Any, correction: str | None) -> dict[str, Any]:
        """Every gradient by autograd."""
        leaves: dict[str, Any] = {n: None if t is None else t.double().requires_grad_() for n, t in inputs.items()}
        delta = time_step(leaves["dt"], leaves["weight"], leaves["bias"])
        y = geo_scan_reference(
            leaves["x"], delta, leaves["A"], leaves["B"], leaves["C"], D_KE=leaves["D"],
            R_KEN=leaves["R"] if correction else None, orders=orders, kind="2d", correction=correction or "equation",
        )  # fmt: skip
        y.backward(dy.double())
        return {name: None if t is None else t.grad for name, t in leaves.items()}

    def edges(
        dy: torch.Tensor, inputs: dict[str, Any], orders: Any, strip: int, BE: int, segments: int, segment_tiles: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """hor, ver, back_ver, back_hor as the sweeps leave them; NaN where they write nothing."""
        batch, H, W, E = inputs["x"].shape
        K, _E, N = inputs["A"].shape
        TI, TJ, blocks = cdiv(max(H, W), strip), cdiv(max(H, W), 4), cdiv(E, BE)
        hor = nan(K, batch, blocks, TI, TJ, N, strip, BE)
        ver, back_ver = nan(K, batch, blocks, TI, TJ, N, 4, BE), nan(K, batch, blocks, TI, TJ, N, 4, BE)
        back_hor = nan(K, batch, blocks, TI, segments, N, strip, BE)
        weight = None if inputs["weight"] is None else inputs["weight"].double()
        deltas = time_step(inputs["dt"].double(), weight, inputs["bias"].double())
        for k, order in enumerate(orders):
            x, delta, dys = (order.turn(t.double())[..., None, :] for t in (inputs["x"], deltas[..., k, :], dy))
            B, C = (order.turn(inputs[name][..., k, :].double())[..., :, None] for name in "BC")
            a = torch.exp(delta * inputs["A"][k].double().T)
            rows, columns = a.shape[1:3]
            ones = torch.ones_like
            g = _along(a, B * delta * x, 2)
            h = _along(a, g, 1)
            torch.testing.assert_close(h, recursion_2d(a, B * delta * x))
            # lam[i] = C dy + Abar[i+1] lam[i+1]: from the last row, with Abar of the row behind.
            behind_i = torch.cat([a[:, 1:], ones(a[:, :1])], 1).flip(1)
            behind_j = torch.cat([a[:, :, 1:], ones(a[:, :, :1])], 2).flip(2)
            lam = _along(behind_i, (C * dys).flip(1), 1).flip(1)
            mu = _along(behind_j, lam.flip(2), 2).flip(2)
            for c in range(E):
                at = (k, slice(None), c // BE)
                for i in range(rows):
                    ti = i // strip
                    for tj in range(1, cdiv(columns, 4)):
                        hor[(*at, ti, tj, slice(None), i % strip, c % BE)] = g[:, i, 4 * tj - 1, :, c].float()
                    for seg in range(segments):
                        j = (seg + 1) * segment_tiles * 4
                        if j < columns:
                            back_hor[(*at, ti, seg, slice(None), i % strip, c % BE)] = (a * mu)[:, i, j, :, c].float()
                for j in range(columns):
                    for ti in range(cdiv(rows, strip)):
                        where = (*at, ti, j // 4, slice(None), j % 4, c % BE)
                        if ti > 0:
                            ver[where] = h[:, ti * strip - 1, j, :, c].float()
                        if (ti + 1) * strip < rows:
                            back_ver[where] = (a * lam)[:, (ti + 1) * strip, j, :, c].float()
        return hor, ver, back_ver, back_hor

    def _along(a: torch.Tensor, b: torch.Tensor, axis: int) -> torch.Tensor:
        state, states = torch.zeros_like(b.select(axis, 0)), []
        for a_t, b_t in zip(a.unbind(axis), b.unbind(axis), strict=True):
            state = a_t * state + b_t
            states.append(state)
        return torch.stack(states, axis)

    def run(
        dy: torch.Tensor,
        inputs: dict[str, Any],
        orders: Any,
        correction: str | None,
        strip: int,
        BE: int,
        segments: int,
    ) -> dict[str, Any]:
        """Every gradient by the two kernels."""
        batch, H, W, E = inputs["x"].shape
        K, _E, N = inputs["A"].shape
        low = inputs["weight"] is not None
        rank = inputs["dt"].shape[-1] if low else 0
        TI, TJ, blocks = cdiv(max(H, W), strip), cdiv(max(H, W), 4), cdiv(E, BE)
        segment_tiles = cdiv(TJ, segments)
        carried = edges(dy, inputs, orders, strip, BE, segments, segment_tiles)
        slots = TI * TJ * strip * 4
        programs = (TI * segments, blocks, K * batch)
        scratch = nan(programs[0] * programs[1] * programs[2], scratch_size(N, rank, strip, BE))
        dx_part, over_channels = nan(K, batch, H * W, E), nan(K, batch, blocks, 2 * N + rank, slots)
        of_parameters = nan(K, batch * TI * segments, 2 * N + 2 + rank, E)
        found: dict[str, Any] = {name: None if t is None else torch.full(t.shape, float("nan"), dtype=t.dtype)
                 for name, t in inputs.items()}  # fmt: skip
        code = sum(order.code << 3 * k for k, order in enumerate(orders))
        x = inputs["x"]
        weight = inputs["weight"] if low else x
        strides = (*inputs["dt"].stride()[2:4], *inputs["B"].stride()[2:4])
        needs_R = correction is not None
        grid_backward_kernel[programs](
            x, inputs["dt"], inputs["A"], inputs["B"], inputs["C"], inputs["D"], inputs["R"], inputs["bias"], weight,
            dy, *carried, scratch, dx_part, found["dt"], over_channels, of_parameters,
            code, K, batch, H, W, E, rank, *strides, segments, segment_tiles,
            LOW_RANK=low, N=N, CORRECTION=CORRECTIONS[correction], NEEDS_R=needs_R, STRIP=strip, BE=BE,
        )  # fmt: skip
        first_position, first_dx, all_sums = sums.gradient_programs(K, batch, H * W, E, N, rank, slots)
        sums.sum_gradients[(all_sums,)](
            dx_part, over_channels, of_parameters, found["x"], found["B"], found["C"], found["dt"], found["A"],
            found["R"], found["D"], found["bias"], found["weight"] if low else x,
            code, batch, H, W, E, rank, batch * TI * segments, slots, first_position, first_dx,
            DIRECTIONS=K, BLOCKS=blocks, LOW_RANK=low, N=N, NEEDS_R=needs_R, STRIP=strip, SIDE=4,
            ELEMENTS=sums.ELEMENTS, SLOTS=sums.SLOTS, CHANNELS=sums.CHANNELS,
        )  # fmt: skip
        return found

    def check(
        *, batch: int = 1, height: int = 3, width: int = 5, E: int = 5, N: int = 2, K: int = 1, rank: int = 0,
        orders: Any = None, correction: str | None = "equation", strip: int = 8, BE: int = 32, segments: int = 1,
        dtype: torch.dtype = torch.float32, tolerance: float = 2e-5,
    ) -> None:  # fmt: skip
        orders = orders or (ScanOrder.from_code(5),)
        inputs = make(batch, height, width, E, N, len(orders), rank, dtype)
        dy = torch.randn(inputs["x"].shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        expected = reference(dy, inputs, orders, correction)
        found = run(dy, inputs, orders, correction, strip, BE, segments)
        for name, want in expected.items():
            if want is None:
                continue
            error = (found[name].double() - want).abs().max()
            scale = float(want.abs().max())
            assert error <= tolerance * scale, f"{name}: {float(error)} of {scale}"

    @pytest.mark.parametrize(("strip", "rank", "height"), [(8, 3, 19), (8, 0, 13), (4, 3, 6), (16, 0, 18)])
    def test_every_gradient(strip: int, rank: int, height: int) -> None:
        check(height=height, width=6, strip=strip, rank=rank, segments=2)

    def test_all_eight_orders() -> None:
        check(height=3, width=9, orders=tuple(ScanOrder.from_code(code) for code in range(8)), rank=2, N=1)

    @pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 9), (9, 1), (7, 13)])
    def test_odd_sizes(height: int, width: int) -> None:
        check(height=height, width=width, rank=4)

    @pytest.mark.parametrize("correction", [None, "state"])
    @pytest.mark.parametrize("code", [6])
    def test_corrections(correction: str | None, code: int) -> None:
        check(height=5, width=6, correction=correction, orders=(ScanOrder.from_code(code),))

    @pytest.mark.parametrize("N", [1, 5, 16])
    def test_dstates(N: int) -> None:
        check(N=N, rank=1)

    def test_several_blocks_of_channels_and_a_batch() -> None:
        check(batch=2, height=5, width=9, E=37, N=1, rank=5, orders=ORDER_SETS["sequence"][:1], segments=3)

    def test_wide_warps() -> None:
        """Sixty-four lanes, as on AMD's CDNA."""
        check(height=3, width=6, E=70, rank=2, N=3, BE=64, segments=2)

    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float16, 1e-3)])
    @pytest.mark.parametrize("rank", [0, 2])
    def test_half_precisions(dtype: torch.dtype, tolerance: float, rank: int) -> None:
        # The interpreter truncates to bfloat16 where a GPU rounds.
        check(dtype=dtype, tolerance=tolerance, rank=rank)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_y_is_summed_over_directions(dtype: torch.dtype) -> None:
        y_part = torch.randn(4, 2, 21, 30, generator=torch.Generator().manual_seed(0))
        y = torch.empty(2, 21, 30, dtype=dtype)
        programs = (sums.direction_programs(y.numel()),)
        sums.sum_directions[programs](y_part, y, 2, 21, 30, DIRECTIONS=4, ELEMENTS=sums.ELEMENTS)
        torch.testing.assert_close(
            y.double(), y_part.double().sum(0), rtol=1e-2 if y.itemsize == 2 else 1e-6, atol=1e-2
        )

    @pytest.mark.parametrize("N", [2, 4])
    def test_positions_of_a_1d_scan_are_found_by_their_step(N: int) -> None:
        """Slot t is step t of the traversal; several blocks of channels are added up."""
        orders, rank, blocks, E = (ScanOrder.from_code(3), ScanOrder.from_code(4)), 3, 2, 4
        batch, H, W, slots = 2, 3, 5, 16
        over_channels = torch.randn(2, batch, blocks, 2 * N + rank, slots, generator=torch.Generator().manual_seed(0))
        dx_part, of_parameters = torch.zeros(2, batch, H * W, E), torch.ones(2, 3, 2 * N + 2 + rank, E)
        dB, dC, ddt = nan(batch, H, W, 2, N), nan(batch, H, W, 2, N), nan(batch, H, W, 2, rank)
        dx, dA, dD, dbias, dweight = nan(batch, H, W, E), nan(2, E, N), nan(2, E), nan(2, E), nan(2, E, rank)
        first_position, first_dx, programs = sums.gradient_programs(2, batch, H * W, E, N, rank, slots)
        code = sum(order.code << 3 * k for k, order in enumerate(orders))
        sums.sum_gradients[(programs,)](
            dx_part, over_channels, of_parameters, dx, dB, dC, ddt, dA, dA, dD, dbias, dweight,
            code, batch, H, W, E, rank, 3, slots, first_position, first_dx,
            DIRECTIONS=2, BLOCKS=blocks, LOW_RANK=True, N=N, NEEDS_R=False, STRIP=0, SIDE=0,
            ELEMENTS=sums.ELEMENTS, SLOTS=sums.SLOTS, CHANNELS=sums.CHANNELS,
        )  # fmt: skip
        found = torch.cat([dB, dC, ddt], -1)
        for k, order in enumerate(orders):
            steps = order.turn(found[..., k, :]).flatten(1, 2)
            torch.testing.assert_close(steps, over_channels[k].sum(1).mT[:, : H * W])
        for summed in (dA, dD, dbias, dweight):
            assert (summed == 3).all()
        assert (dx == 0).all()
