"""Points at other distances than the training's, axes that are rings, and an exact hold, in the Triton kernels: in
Triton's interpreter against the float64 reference.

The checks run in a process of their own (TRITON_INTERPRET), which `test_in_the_interpreter` starts on this file.
"""

import os
from pathlib import Path

import pytest
import torch

from geomano_hpc.kernels import order_set
from tests.support.interpreter import INTERPRETED, NEWER, NO_NEWER, check_in_the_interpreter, fast_interpreter
from tests.support.scan_inputs import ALL_EIGHT, assert_like_reference, random_inputs, scan_and_gradients

pytest.importorskip("triton")

if not INTERPRETED:

    @pytest.mark.interpreter
    @pytest.mark.slow(120)
    def test_in_the_interpreter() -> None:
        """Runs every check of this file."""
        check_in_the_interpreter(__file__)

    @pytest.mark.interpreter
    @pytest.mark.skipif(not NEWER, reason=NO_NEWER)
    def test_chosen_checks_in_the_interpreter_of_a_newer_triton() -> None:
        chosen = "release_that_was_asked_for or rings_of_several_bands or all_eight"
        check_in_the_interpreter(__file__, "-k", chosen, newer=True)

    @pytest.mark.compile
    @pytest.mark.slow(60)
    def test_a_first_forward_compiles_what_rings_need_and_other_spacings_nothing(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from geomano_hpc.kernels.audit.fake_driver import counted_compilations, fake_gpu
        from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
        from geomano_hpc.kernels.triton import scan

        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        inputs = ScanInputs(**random_inputs(dtype=torch.float32, rank=2))
        settings = ScanSettings(order_set("paper"), "2d", "equation", 0.5, (True, False), (0.5, -0.25))
        with fake_gpu(fresh=True):
            _, carries = scan.forward(inputs, settings, True)
            with counted_compilations() as compiled:
                scan.backward(inputs.x, inputs, settings, carries, False)
                for stretch, periodic, own in ((2.3, (True, True), (0.0, 1.5)), (0.1, (False, True), (7.0, 0.5))):
                    other = settings._replace(stretch=stretch, periodic=periodic, own=own)
                    scan.backward(inputs.x, inputs, other, scan.forward(inputs, other, True)[1], False)
        assert compiled.all == []

else:
    from collections.abc import Iterator
    from typing import Any

    import triton

    from geomano_hpc.kernels.audit.races import check as races
    from geomano_hpc.kernels.audit.races.access_layouts import compiled_layouts
    from geomano_hpc.kernels.triton import plan
    from geomano_hpc.kernels.triton.blocks import Blocks

    Pair = tuple[bool, bool]
    Numbers = tuple[float, float]
    # Of points that are half as far apart along H, and farther along W.
    OWN, NONE, HOLD = (0.5, -0.3), (0.0, 0.0), (2.0, 0.4)
    BOTH, ALONG_H, ALONG_W, NEITHER = (True, True), (True, False), (False, True), (False, False)

    @pytest.fixture(autouse=True)
    def _fast() -> Iterator[None]:
        with fast_interpreter():
            yield

    @pytest.fixture(autouse=True)
    def _poison(monkeypatch: pytest.MonkeyPatch) -> None:
        """Memory that nobody wrote is NaN."""
        empty, new_empty = torch.empty, torch.Tensor.new_empty

        def poisoned(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        monkeypatch.setattr(torch, "empty", lambda *sizes, **options: poisoned(empty(*sizes, **options)))
        monkeypatch.setattr(torch.Tensor, "new_empty", lambda *sizes, **options: poisoned(new_empty(*sizes, **options)))

    @pytest.fixture
    def in_blocks(monkeypatch: pytest.MonkeyPatch) -> Any:
        """Chooses the sizes of the kernels: strips are eight rows, one below the other in a band."""

        def choose(**sizes: int) -> None:
            monkeypatch.setattr(plan, "blocks_for", lambda *_: Blocks(**sizes))

        choose(strips=1)
        return choose

    def check(sizes: dict[str, Any], stretch: float, periodic: Pair, orders: Any, **options: Any) -> None:
        inputs = random_inputs(**sizes, dtype=torch.float32)
        options = {"stretch": stretch, "periodic": periodic, "kind": "2d", **options}
        assert_like_reference(inputs, 2e-5, orders=orders, backend="triton", **options)

    def test_triton_is_the_release_that_was_asked_for() -> None:
        assert triton.__version__.startswith(os.environ.get("EXPECTED_TRITON", ""))

    @pytest.mark.parametrize(
        ("orders", "rank", "stretch", "periodic", "own", "form"),
        [
            ("paper", 2, 0.5, BOTH, NONE, "equation"),
            ("corners", None, 2.3, ALONG_H, OWN, "equation"),
            ("paper", 2, 2.3, NEITHER, OWN, "equation"),
            ("corners", 9, 0.5, ALONG_W, OWN, "state"),
            ("corners", 2, 1.0, NEITHER, OWN, "state"),
        ],
    )
    def test_forward_and_gradients(
        orders: str, rank: int | None, stretch: float, periodic: Pair, own: Numbers, form: str, in_blocks: Any
    ) -> None:
        """Tiles are 8 x 4 positions, so none of these is full."""
        sizes = {"height": 5, "width": 6, "channels": 3, "dstate": 2, "rank": rank}
        check(sizes, stretch, periodic, orders, own=own, correction=form)

    def test_all_eight_orders(in_blocks: Any) -> None:
        check({"height": 3, "width": 5, "channels": 2, "dstate": 1, "K": 8}, 2.3, ALONG_W, ALL_EIGHT, own=OWN)

    @pytest.mark.parametrize(
        ("height", "width", "periodic", "hold"),
        [(18, 7, BOTH, HOLD), (7, 18, ALONG_H, None), (18, 7, ALONG_H, None), (7, 18, NEITHER, HOLD)],
    )
    def test_rings_of_several_bands_and_segments(
        height: int, width: int, periodic: Pair, hold: Numbers | None, in_blocks: Any
    ) -> None:
        """Two strips to a band, so that a band begins in front of the grid and one ends behind it."""
        in_blocks(strips=2, chunks=2)
        orders = (ALL_EIGHT[3], ALL_EIGHT[6])  # one row-major, one column-major
        sizes = {"height": height, "width": width, "channels": 2, "dstate": 2, "K": 2}
        check(sizes, 0.5, periodic, orders, own=OWN, hold=hold)

    @pytest.mark.parametrize(("hold", "form"), [(None, "equation"), (HOLD, "state")])
    def test_a_sequence_in_several_chunks(hold: Numbers | None, form: str, in_blocks: Any) -> None:
        """The first point of the first chunk counts more, and every point for itself."""
        in_blocks(chunks=3)
        orders, sizes = (ALL_EIGHT[3], ALL_EIGHT[6]), {"height": 12, "width": 9, "K": 2, "rank": 2}
        check(sizes, 1.0, NEITHER, orders, own=OWN, hold=hold, kind="1d", correction=form)

    @pytest.mark.parametrize("kind", ["1d", "2d"])
    def test_a_hold_of_small_steps_keeps_its_digits(kind: str, in_blocks: Any) -> None:
        """Of 1e-7, where exp(dt A) - 1 of float32 has none, between steps of 1; with the exponents of the decay."""
        inputs = random_inputs(height=4, width=5, channels=2, dstate=2, K=1, dtype=torch.float32)
        inputs["dt_bias"] = inputs["dt_bias"] - 16
        for steps in ("all are small", "a few are not"):
            if steps == "a few are not":
                inputs["dt"][:, ::2] += 18
            options: dict[str, Any] = {"orders": ALL_EIGHT[:1], "stretch": 1.0, "hold": (1.0, 1.0), "kind": kind}
            assert_like_reference(inputs, 3e-6, backend="triton", **options)

    def test_the_default_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
        check({"height": 9, "width": 4, "channels": 3, "dstate": 3, "K": 1}, 2.3, BOTH, ALL_EIGHT[7:])

    @pytest.mark.parametrize(("height", "width"), [(1, 9), (9, 1), (1, 1)])
    def test_a_closed_line(height: int, width: int, in_blocks: Any) -> None:
        check({"height": height, "width": width, "K": 2, "rank": 1}, 1.0, BOTH, "sequence")

    @pytest.mark.parametrize("lanes", [32, 64])
    def test_blocks_of_channels_and_a_batch(lanes: int, in_blocks: Any) -> None:
        """Two blocks of channels, of which the last is not full, and dstates that fill no group."""
        in_blocks(strips=1, lanes=lanes)
        sizes = {"batch": 2, "height": 3, "width": 5, "channels": lanes + 2, "dstate": 5, "K": 1}
        check(sizes, 2.3, BOTH, ALL_EIGHT[4:5])

    def test_slow_decay(in_blocks: Any) -> None:
        """1 - p is small: a ring sums up over many turns."""
        inputs = random_inputs(height=3, width=4, K=2, dtype=torch.float32)
        inputs["dt_bias"] = inputs["dt_bias"] - 9
        options: dict[str, Any] = {"periodic": BOTH, "kind": "2d", "orders": "sequence", "stretch": 0.5}
        assert_like_reference(inputs, 2e-5, backend="triton", **options)

    def test_a_large_batch_is_taken_in_slices(in_blocks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plan, "CARRIES_BYTES", 1)
        check({"batch": 2, "height": 2, "width": 3, "channels": 2, "dstate": 1, "K": 1}, 0.5, ALONG_W, ALL_EIGHT[:1])

    def test_nan_stays(in_blocks: Any) -> None:
        inputs = random_inputs(height=3, width=4, K=1, dtype=torch.float32)
        inputs["x"][0, -1, -1, 0] = float("nan")
        y = scan_and_gradients(inputs, orders=ALL_EIGHT[:1], kind="2d", periodic=BOTH, backend="triton")["y"]
        assert y[..., 0].isnan().all()
        assert y[..., 1].isfinite().all()

    def test_no_kernel_has_a_race(in_blocks: Any) -> None:
        """With two walks, over two bands where the order is row-major, of points that count more for themselves."""
        in_blocks(strips=2)
        inputs = random_inputs(height=17, width=3, channels=34, dstate=2, K=2, rank=2, dtype=torch.float32)
        options: dict[str, Any] = {"orders": (ALL_EIGHT[0], ALL_EIGHT[7]), "kind": "2d", "stretch": 0.5, "own": OWN}
        with races.checked(compiled_layouts()) as launched:
            scan_and_gradients(inputs, **options, periodic=BOTH, backend="triton")
        assert launched.count("grid_rings_kernel") == 3
        assert launched.count("grid_sweep_kernel") == 2
