"""Races that are planted in small kernels, and the same kernels without them.

Triton reads TRITON_INTERPRET when kernels are defined, so the checks run in a process of their own, which
`test_in_the_interpreter` starts on this file.
"""

import os

import pytest

from tests.support.interpreter import INTERPRETED, NEWER, NO_NEWER, check_in_the_interpreter

pytest.importorskip("triton")

if not INTERPRETED:

    @pytest.mark.interpreter
    def test_in_the_interpreter() -> None:
        """Runs every check of this file."""
        check_in_the_interpreter(__file__)

    @pytest.mark.interpreter
    @pytest.mark.skipif(not NEWER, reason=NO_NEWER)
    def test_in_the_interpreter_of_a_newer_triton() -> None:
        check_in_the_interpreter(__file__, newer=True)

else:
    import time

    import torch
    import triton

    from geomano_hpc.kernels.audit.races import check as races
    from geomano_hpc.kernels.audit.races.access_layouts import compiled_layouts
    from geomano_hpc.kernels.triton import launching
    from tests.support import small_kernels

    def test_triton_is_the_release_that_was_asked_for() -> None:
        assert triton.__version__.startswith(os.environ.get("EXPECTED_TRITON", ""))

    LAYOUTS: list[races.Layouts | None] = [None]  # of the default rule, or of the compiler

    @pytest.fixture(params=["default", "compiled"], autouse=True)
    def _layouts(request: pytest.FixtureRequest) -> None:
        LAYOUTS[0] = compiled_layouts() if request.param == "compiled" else None

    def start(
        kernel: object, *arguments: object, programs: int = 1, warps: int = 4, in_step: bool = False, **constants: int
    ) -> list[str]:
        with races.checked(LAYOUTS[0], in_step=in_step) as launched:
            launching.launch(kernel, (programs,), arguments, {**constants, "num_warps": warps, "num_stages": 1})
        return launched

    def test_two_programs_that_write_one_address() -> None:
        x, y = torch.ones(128), torch.zeros(128)
        assert start(small_kernels.neighbours, x, y, programs=3, OVERLAP=0) == ["neighbours"]
        fault = r"neighbours: 1 elements of y stored at \S+:\d+ by program \(1, 0, 0\) and stored by program"
        with pytest.raises(races.RaceError, match=fault):
            start(small_kernels.neighbours, x, y, programs=3, OVERLAP=1)

    def test_a_program_that_reads_what_another_writes_in_either_order() -> None:
        start(small_kernels.in_place, torch.zeros(96), programs=3, warps=1, SHIFT=0)
        with pytest.raises(races.RaceError, match=r"of x stored .* and loaded by program \(0, 0, 0\)"):
            start(small_kernels.in_place, torch.zeros(96), programs=3, warps=1, SHIFT=1)
        with races.random_order(5), pytest.raises(races.RaceError, match="elements of x"):
            start(small_kernels.in_place, torch.zeros(96), programs=3, warps=1, SHIFT=1)

    @pytest.mark.parametrize(("first", "each", "sound"), [(1, 1, True), (0, 1, False), (1, 0, False)])
    def test_a_hand_over_between_warps_needs_its_barriers(first: int, each: int, sound: bool) -> None:
        arguments = (torch.zeros(256), torch.zeros(128), 5)
        if sound:
            start(small_kernels.hand_over, *arguments, BARRIER=first, WAIT=each)
            return
        for in_step in (False, True):
            with pytest.raises(races.RaceError, match=r"hand_over: 96 elements of \w+ loaded .* by another thread"):
                start(small_kernels.hand_over, *arguments, in_step=in_step, BARRIER=first, WAIT=each)

    def test_a_store_waits_for_the_loads_of_other_threads() -> None:
        start(small_kernels.one_slot, torch.zeros(128), BARRIER=1)
        with pytest.raises(races.RaceError, match=r"96 elements of handed stored .* were loaded .* by another thread"):
            start(small_kernels.one_slot, torch.zeros(128), BARRIER=0)

    def test_a_scratch_of_the_same_thread_needs_no_barrier() -> None:
        start(small_kernels.own_scratch, torch.zeros(128), torch.zeros(128), 3)
        start(small_kernels.own_scratch, torch.zeros(128), torch.zeros(128), 3, warps=1)

    def test_the_compiler_may_choose_other_lanes_than_the_default_rule() -> None:
        if LAYOUTS[0]:
            start(small_kernels.turned, torch.zeros(128), torch.zeros(128))
        else:
            with pytest.raises(races.RaceError, match="elements of scratch loaded"):
                start(small_kernels.turned, torch.zeros(128), torch.zeros(128))

    def test_an_element_that_several_threads_load() -> None:
        start(small_kernels.few, torch.zeros(8), torch.zeros(8), warps=1, BARRIER=1)
        start(small_kernels.few, torch.zeros(8), torch.zeros(8), warps=1, in_step=True, BARRIER=0)
        with pytest.raises(races.RaceError, match="8 elements of scratch loaded"):
            start(small_kernels.few, torch.zeros(8), torch.zeros(8), warps=2, in_step=True, BARRIER=0)
        with pytest.raises(races.RaceError, match="8 elements of scratch loaded"):
            start(small_kernels.few, torch.zeros(8), torch.zeros(8), warps=1, BARRIER=0)

    def test_threads_that_store_to_one_address_agree() -> None:
        start(small_kernels.one_address, torch.zeros(1), warps=1, DIFFERENT=0)
        with pytest.raises(races.RaceError, match=r"of y stored .* in the same store"):
            start(small_kernels.one_address, torch.zeros(1), warps=1, DIFFERENT=1)

    def test_atomics_and_foreign_memory_are_refused() -> None:
        with pytest.raises(races.RaceError, match="atomic"):
            start(small_kernels.counter, torch.zeros(2), programs=2)
        with pytest.raises(races.RaceError, match="memory of no argument"):
            start(small_kernels.neighbours, torch.zeros(96), torch.zeros(95), programs=3, OVERLAP=0)

    def test_types_of_two_sizes_in_one_storage() -> None:
        whole = torch.zeros(256, dtype=torch.float16)
        start(small_kernels.neighbours, whole[:64].view(torch.float32), whole[128:], programs=1, OVERLAP=-16)
        with pytest.raises(races.RaceError, match="32 elements of x or y stored"):
            start(small_kernels.neighbours, whole[:128].view(torch.float32), whole, programs=1, OVERLAP=0)

    def test_programs_run_in_an_order_by_lot() -> None:
        y = torch.zeros(1)
        seen = set()
        for seed in range(4):
            with races.random_order(seed):
                small_kernels.last_one[(7,)](y)
            seen.add(float(y))
        assert len(seen) > 1

        def run() -> torch.Tensor:
            small_kernels.last_one[(7,)](y)
            return y.clone()

        with pytest.raises(races.RaceError, match="result 0 depends on the order"):
            races.assert_same_bits_in_any_order(run, seeds=(0, 1, 2, 3))

        def sound() -> tuple[torch.Tensor, None]:
            x, out = torch.arange(128.0), torch.zeros(128)
            small_kernels.neighbours[(3,)](x, out, OVERLAP=0)
            return out, None

        races.assert_same_bits_in_any_order(sound)

    def test_nothing_stays_patched() -> None:
        with races.checked(), races.random_order(0):
            pass
        small_kernels.last_one[(7,)](y := torch.zeros(1))
        assert float(y) == 6.0

    def test_a_million_accesses_take_about_a_second() -> None:
        x, y = torch.ones(16384), torch.zeros(16384)
        start_time = time.perf_counter()
        start(small_kernels.busy, x, y, 31, programs=4)
        assert time.perf_counter() - start_time < 5.0  # 0.2 s on a quiet machine
