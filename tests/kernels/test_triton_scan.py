"""The Triton scan in Triton's interpreter against the float64 reference.

Triton reads TRITON_INTERPRET when kernels are defined, and other tests define them for compilation. So the checks
below run in a process of their own, which `test_in_the_interpreter` starts on this file.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from geomano_hpc.errors import BackendError
from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
from geomano_hpc.kernels.orders import ORDER_SETS, ScanOrder
from geomano_hpc.kernels.reference import geo_scan_reference, time_step
from tests.support.interpreter import INTERPRETED, NEWER, NO_NEWER, check_in_the_interpreter, fast_interpreter
from tests.support.scan_inputs import assert_like_reference, random_inputs

pytest.importorskip("triton")

if not INTERPRETED:

    @pytest.mark.interpreter
    @pytest.mark.slow(150)
    def test_in_the_interpreter() -> None:
        """Runs every check of this file."""
        check_in_the_interpreter(__file__)

    # Every kernel in both kinds of scan, low rank, half precision, and what is Triton's own: its scan and its release.
    CHOSEN = (
        "release_that_was_asked_for", "low_rank_dt_and_one_order", "half_precisions", "chunks_of_the_traversal",
        "more_rows_than_a_band", "interpreters_own_scan", "through_the_operator", "every_kernel_ran",
    )  # fmt: skip

    @pytest.mark.interpreter
    @pytest.mark.skipif(not NEWER, reason=NO_NEWER)
    def test_chosen_checks_in_the_interpreter_of_a_newer_triton() -> None:
        check_in_the_interpreter(__file__, "-k", " or ".join(CHOSEN), newer=True)

else:
    import triton
    from triton.runtime import interpreter

    from geomano_hpc.kernels.triton import launching, plan
    from geomano_hpc.kernels.triton import scan as triton_scan
    from geomano_hpc.kernels.triton.blocks import Blocks

    ALL_ORDERS = tuple(ScanOrder.from_code(code) for code in range(8))
    ONE_CHUNK = Blocks(strips=1, chunks=1)  # bands of eight rows
    own_scan = interpreter.ScanOps.generic_scan

    def test_triton_is_the_release_that_was_asked_for() -> None:
        assert triton.__version__.startswith(os.environ.get("EXPECTED_TRITON", ""))

    @pytest.fixture(autouse=True)
    def _fast() -> Iterator[None]:
        with fast_interpreter():
            yield

    LAUNCHED: set[tuple[str, Any]] = set()

    @pytest.fixture(autouse=True)
    def _launches(monkeypatch: pytest.MonkeyPatch) -> None:
        """Remembered, for the last of the checks."""
        launch = launching.launch

        def remembered(
            kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]
        ) -> None:
            LAUNCHED.add((kernel.fn.__name__, constants.get("SWEEP", constants.get("ADJOINT"))))
            launch(kernel, grid, arguments, constants)

        monkeypatch.setattr(launching, "launch", remembered)

    @pytest.fixture(autouse=True)
    def _poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Memory that nobody wrote is NaN."""
        empty, new_empty = torch.empty, torch.Tensor.new_empty

        def poisoned(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        with monkeypatch.context() as patches:
            patches.setattr(torch, "empty", lambda *sizes, **options: poisoned(empty(*sizes, **options)))
            patches.setattr(torch.Tensor, "new_empty", lambda *sizes, **options: poisoned(new_empty(*sizes, **options)))
            yield

    def make(
        batch: int = 1,
        height: int = 3,
        width: int = 5,
        E: int = 5,
        N: int = 2,
        K: int = 1,
        rank: int = 0,
        R: bool = True,
    ) -> ScanInputs:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        grid = (batch, height, width)
        dt_B_C = normal(*grid, K, (rank or E) + 2 * N)  # views of one tensor, as the model makes them
        dt, B, C = dt_B_C.split([rank or E, N, N], dim=-1)
        A = -torch.exp(normal(K, E, N))
        R_KEN = normal(K, E, N) if R else None
        weight = normal(K, E, rank) if rank else None
        return ScanInputs(normal(*grid, E), dt, A, B, C, normal(K, E), R_KEN, normal(K, E), weight)

    def reference(dy: torch.Tensor, inputs: ScanInputs, settings: ScanSettings) -> tuple[torch.Tensor, ScanInputs]:
        leaves = ScanInputs(*(None if t is None else t.double().requires_grad_() for t in inputs))  # type: ignore[arg-type]
        dt = time_step(leaves.dt, leaves.dt_weight, leaves.dt_bias)
        y = geo_scan_reference(
            leaves.x, dt, leaves.A, leaves.B, leaves.C,
            D_KE=leaves.D, R_KEN=leaves.R, settings=settings,
        )  # fmt: skip
        y.backward(dy.double())
        return y.detach(), ScanInputs(*(None if t is None else t.grad for t in leaves))  # type: ignore[arg-type]

    def run(
        dy: torch.Tensor, inputs: ScanInputs, settings: ScanSettings, blocks: Blocks | None = None
    ) -> tuple[torch.Tensor, ScanInputs]:
        blocks = blocks or ONE_CHUNK
        y, carries = triton_scan.forward(inputs, settings, True, _blocks=blocks)
        assert carries.numel() == triton_scan.carries_size(inputs, settings, blocks)
        return y, triton_scan.backward(dy, inputs, settings, carries, True, _blocks=blocks)

    def check(
        inputs: ScanInputs, settings: ScanSettings, tolerance: float = 2e-5, blocks: Blocks | None = None
    ) -> None:
        dy = torch.randn(inputs.x.shape, generator=torch.Generator().manual_seed(1)).to(inputs.x.dtype)
        expected_y, expected = reference(dy, inputs, settings)
        y, gradients = run(dy, inputs, settings, blocks)
        assert y.dtype == inputs.x.dtype
        assert y.is_contiguous()
        torch.testing.assert_close(y.double(), expected_y, rtol=0, atol=tolerance * float(expected_y.abs().max()))
        for name, tensor, want, source in zip(ScanInputs._fields, gradients, expected, inputs, strict=True):
            if source is None:
                assert tensor is None
                continue
            assert tensor is not None, name
            assert tensor.dtype == source.dtype, name
            assert tensor.shape == source.shape, name
            want = torch.zeros_like(source).double() if want is None else want  # A at a single position
            scale = float(want.abs().max())
            error = (tensor.double() - want).abs().max()
            assert error <= tolerance * scale, f"{name}: {float(error)} of {scale}"

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    def test_all_eight_orders(kind: str) -> None:
        check(make(K=8, height=3, width=9, E=4, N=1), ScanSettings(ALL_ORDERS, kind, "equation"))

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    @pytest.mark.parametrize("code", [1, 6])
    def test_low_rank_dt_and_one_order(kind: str, code: int) -> None:
        check(make(rank=3, height=4), ScanSettings((ScanOrder.from_code(code),), kind, "state"))

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    @pytest.mark.parametrize("correction", ["equation", "state"])
    def test_corrections(kind: str, correction: str) -> None:
        check(make(K=2), ScanSettings(ORDER_SETS["sequence"], kind, correction))

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    def test_vanilla(kind: str) -> None:
        check(make(K=2, R=False), ScanSettings(ORDER_SETS["sequence"], kind, "equation"))

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    def test_a_batch_and_the_paper_orders(kind: str) -> None:
        check(make(batch=2, E=4, K=4, N=1), ScanSettings(ORDER_SETS["paper"], kind, "equation"))

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    @pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 9), (9, 1), (7, 13)])
    def test_odd_sizes(kind: str, height: int, width: int) -> None:
        check(make(height=height, width=width), ScanSettings((ScanOrder.from_code(5),), kind, "equation"))

    def test_the_grid_of_the_darcy_recipe_forwards() -> None:
        """85 rows: three bands, of which the last is not full."""
        inputs, settings = (
            make(height=85, width=85, E=2, N=1),
            ScanSettings((ScanOrder.from_code(6),), "2d", "equation"),
        )
        y, _ = triton_scan.forward(inputs, settings, False)
        expected, _ = reference(inputs.x, inputs, settings)
        torch.testing.assert_close(y.double(), expected, rtol=0, atol=2e-5 * float(expected.abs().max()))

    @pytest.mark.parametrize(("height", "width"), [(18, 3), (3, 18)])
    def test_more_rows_than_a_band(height: int, width: int) -> None:
        """Two strips of eight rows to a band, and a column-major order, whose rows are the columns of the other."""
        orders = (ScanOrder.from_code(2), ScanOrder.from_code(5))
        inputs = make(height=height, width=width, K=2, E=3)
        check(inputs, ScanSettings(orders, "2d", "equation"), blocks=Blocks(strips=2, chunks=2))

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    @pytest.mark.parametrize("N", [1, 8, 20, 33])
    def test_dstates(kind: str, N: int) -> None:
        check(make(height=2, width=9, E=4, N=N), ScanSettings((ScanOrder(),), kind, "equation"))

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    def test_the_default_blocks(kind: str) -> None:
        inputs, settings = make(height=3, width=3, N=1), ScanSettings((ScanOrder(),), kind, "equation")
        expected, gradients = reference(inputs.x, inputs, settings)
        y, carries = triton_scan.forward(inputs, settings, True)
        assert carries.numel() == triton_scan.carries_size(inputs, settings)
        torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
        found = triton_scan.backward(inputs.x, inputs, settings, carries, True)
        for name, one, right in zip(ScanInputs._fields, found, gradients, strict=True):
            if right is not None:
                assert one is not None, name
                torch.testing.assert_close(one.double(), right, rtol=1e-4, atol=1e-4, msg=name)

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    def test_strided_inputs_and_a_fixed_correction(kind: str) -> None:
        inputs, settings = make(K=1), ScanSettings((ScanOrder(),), kind, "equation")
        turned = inputs.x.transpose(1, 2).contiguous().transpose(1, 2)
        strided = inputs._replace(x=turned, B=inputs.B.repeat(1, 1, 1, 1, 2)[..., ::2])
        check(strided, settings)
        assert inputs.R is not None
        wide = torch.cat([inputs.A, inputs.A], dim=-1)[..., : inputs.A.shape[-1]]
        parameters = inputs._replace(R=inputs.R[:, :1].expand(inputs.R.shape), A=wide)
        assert not parameters.R.is_contiguous()  # type: ignore[union-attr]
        check(parameters, settings)
        dy = torch.ones(1, 1, 1, 1).expand(inputs.x.shape)
        _, carries = triton_scan.forward(inputs, settings, True)
        gradients = triton_scan.backward(dy, inputs, settings, carries, False)
        assert gradients.R is None
        torch.testing.assert_close(gradients.x.double(), reference(dy, inputs, settings)[1].x, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    @pytest.mark.parametrize("axes", [(1, 2), (0, 2), (0, 1)])
    def test_strides_of_axes_with_one_element_mean_nothing(kind: str, axes: tuple[int, int]) -> None:
        """Torch calls such a tensor contiguous, whatever they are."""
        sizes = [1, 1, 1]
        sizes[axes[0]] = 5
        batch, height, width = sizes
        inputs = make(batch, height, width, E=3, K=2)
        turned = {}
        for name in ("dt", "B", "C"):
            tensor = getattr(inputs, name)
            turned[name] = tensor.transpose(*axes).clone(memory_format=torch.contiguous_format).transpose(*axes)
        check(inputs._replace(**turned), ScanSettings(ORDER_SETS["sequence"], kind, "equation"))

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    def test_directions_in_front(kind: str) -> None:
        inputs = make(batch=2, K=2)
        moved = {}
        for name in ("dt", "B", "C"):
            moved[name] = getattr(inputs, name).movedim(3, 0).contiguous().movedim(0, 3)
        check(inputs._replace(**moved), ScanSettings(ORDER_SETS["sequence"], kind, "equation"))

    def test_mixed_precisions_are_refused() -> None:
        inputs, settings = make(), ScanSettings((ScanOrder(),), "1d", "equation")
        with pytest.raises(BackendError, match="takes B in"):
            triton_scan.forward(inputs._replace(B=inputs.B.half()), settings, False)
        with pytest.raises(BackendError, match="takes A in"):
            triton_scan.forward(inputs._replace(A=inputs.A.half()), settings, False)

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    def test_large_and_small_time_steps(kind: str) -> None:
        inputs = make(N=1)
        inputs = inputs._replace(dt=inputs.dt * 60)  # softplus from 1e-40 to 150
        check(inputs, ScanSettings((ScanOrder(),), kind, "equation"))

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    @pytest.mark.parametrize("name", ScanInputs._fields)
    def test_nan_stays(kind: str, name: str) -> None:
        inputs, settings = make(N=1, rank=2), ScanSettings((ScanOrder(),), kind, "equation")
        broken = getattr(inputs, name).clone()
        broken.view(-1)[0] = float("nan")  # the first point, or the first channel
        y, _ = triton_scan.forward(inputs._replace(**{name: broken}), settings, False)
        assert y[..., 0].isnan().any()

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precisions(kind: str, dtype: torch.dtype) -> None:
        inputs = make(rank=2 if kind == "1d" else 0, K=2)
        inputs = inputs._replace(**{name: getattr(inputs, name).to(dtype) for name in ("x", "dt", "B", "C")})
        # The interpreter truncates to bfloat16 where a GPU rounds.
        check(inputs, ScanSettings(ORDER_SETS["sequence"], kind, "equation"), 1e-2 if dtype == torch.bfloat16 else 1e-3)

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    @pytest.mark.parametrize(("code", "rank"), [(0, 0), (3, 3), (6, 0)])
    def test_chunks_of_the_traversal(kind: str, code: int, rank: int) -> None:
        """Chunks of a sequence and segments of a grid, of which the last is not full."""
        inputs = make(height=7, width=11, E=4, rank=rank)
        check(inputs, ScanSettings((ScanOrder.from_code(code),), kind, "equation"), blocks=Blocks(strips=1, chunks=3))

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    @pytest.mark.parametrize("rank", [0, 18])
    def test_several_blocks_of_channels_and_one_that_is_not_full(kind: str, rank: int) -> None:
        inputs = make(batch=2, height=3, width=5, E=69, N=1, K=2, rank=rank)
        check(inputs, ScanSettings(ORDER_SETS["sequence"], kind, "state"))

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    def test_warps_of_64_lanes(kind: str) -> None:
        """As AMD's CDNA has them."""
        inputs = make(height=3, width=9, E=69, rank=3)
        check(inputs, ScanSettings((ScanOrder(),), kind, "equation"), blocks=Blocks(lanes=64, strips=1, chunks=2))

    def test_a_large_batch_is_taken_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plan, "CARRIES_BYTES", 1)
        check(make(batch=3, height=2, width=3, N=1), ScanSettings((ScanOrder(),), "2d", "equation"))

    def test_the_interpreters_own_scan(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(interpreter.ScanOps, "generic_scan", own_scan)
        check(make(height=2, width=3, E=2, N=1), ScanSettings((ScanOrder(),), "1d", "equation"))

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    def test_through_the_operator(kind: str) -> None:
        """geo_scan finds the backend, keeps what the backward needs, and autograd gets every gradient."""
        inputs = random_inputs(1, 3, 5, channels=5, dstate=2, K=2, rank=2, dtype=torch.float32)
        assert_like_reference(inputs, 2e-5, orders=ORDER_SETS["sequence"], kind=kind, backend="triton")

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    def test_opcheck(kind: str) -> None:
        """Schema, autograd registration, fake kernel and AOT dispatch."""
        inputs = random_inputs(1, 2, 3, channels=2, dstate=1, K=1, rank=2, dtype=torch.float32)
        leaves = [tensor.requires_grad_() for tensor in inputs.values()]
        operator = torch.ops.geomano_hpc.geo_scan.default
        torch.library.opcheck(operator, (*leaves, [0], kind, "state", "triton", True))

    def test_float64_is_refused() -> None:
        inputs = ScanInputs(*(None if t is None else t.double() for t in make()))  # type: ignore[arg-type]
        with pytest.raises(BackendError, match="float64"):
            triton_scan.forward(inputs, ScanSettings((ScanOrder(),), "1d", "equation"), False)

    @pytest.mark.parametrize("dstate", [65, 96])
    def test_more_dstates_than_the_kernels_take_are_refused(dstate: int) -> None:
        with pytest.raises(BackendError, match="64 dstates"):
            triton_scan.forward(make(N=dstate), ScanSettings((ScanOrder(),), "2d", "equation"), False)

    def test_grids_whose_offsets_do_not_fit_are_refused() -> None:
        """Before anything is allocated: expanded tensors take no memory."""

        def large(side: int, K: int) -> ScanInputs:
            def expanded(*sizes: int) -> torch.Tensor:
                return torch.zeros(1).expand(sizes)

            grid = (1, side, side)
            rows = torch.empty(*grid, K, 36, device="meta")
            dt, B, C = rows.split([4, 16, 16], dim=-1)
            A, D = expanded(K, 8, 16), expanded(K, 8)
            return ScanInputs(torch.empty(*grid, 8, device="meta"), dt, A, B, C, D, None, D, expanded(K, 8, 4))

        settings = ScanSettings((ScanOrder(),) * 4, "2d", "equation")
        with pytest.raises(BackendError, match="samples of up to"):
            triton_scan.forward(large(5000, 4), settings, False)
        inputs, one = large(5000, 1), settings._replace(orders=(ScanOrder(),))
        with pytest.raises(BackendError, match="edges of tiles"):
            triton_scan.backward(inputs.x, inputs, one, inputs.A, False)

    def test_every_kernel_ran_in_every_role() -> None:
        """In the checks above, also where only some of them are chosen."""
        sequence = {("sequence_forward_kernel", role) for role in (0, 1, 2)} | {("sequence_backward_kernel", None)}
        grid = {("grid_sweep_kernel", role) for role in (False, True)} | {("grid_forward_kernel", None)}
        assert sequence | grid | {("grid_backward_kernel", None), ("sum_gradients", None)} <= LAUNCHED
