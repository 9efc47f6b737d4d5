"""Layouts as the compiler prints them, and the threads that hold a tensor's elements."""

import pytest

pytest.importorskip("triton")

import numpy as np

from geomano_hpc.kernels.audit.races.access_layouts import parse_layout, read_accesses
from geomano_hpc.kernels.audit.races.threads import Blocked, Linear, Slice, default_layout, holders

BLOCKED = "#ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [2, 1], order = [1, 0]}>"
LINEAR = (
    "#ttg.linear<{register = [[0, 1], [0, 2]], lane = [[0, 4], [0, 8], [0, 16], [1, 0], [2, 0]], "
    "warp = [[4, 0]], block = []}>"
)


def test_a_blocked_layout_and_the_same_by_bits() -> None:
    blocked, linear = parse_layout(BLOCKED), parse_layout(LINEAR)
    assert blocked == Blocked((1, 4), (4, 8), (2, 1), (1, 0))
    assert isinstance(linear, Linear)
    one, other = holders((8, 32), blocked), holders((8, 32), linear)
    np.testing.assert_array_equal(one.first, other.first)
    assert one.first[0, :9].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert one.first[:, 0].tolist() == [0, 8, 16, 24, 32, 40, 48, 56]
    assert one[1:] == other[1:] == (False, False)


def test_elements_that_lanes_or_warps_share() -> None:
    blocked = parse_layout(BLOCKED)
    assert holders((4, 32), blocked)[1:] == (False, True)
    assert holders((8, 16), blocked)[1:] == (True, False)
    assert holders((16, 64), blocked)[1:] == (False, False)
    sliced = parse_layout(f"#ttg.slice<{{dim = 0, parent = {BLOCKED}}}>")
    assert sliced == Slice(0, blocked)
    found = holders((32,), sliced)
    assert found.first.tolist() == [lane for lane in range(8) for _ in range(4)]
    assert found[1:] == (True, True)
    twice = Linear((), ((1,), (0,)), ((0,),))
    assert holders((2,), twice)[1:] == (True, True)


@pytest.mark.parametrize(
    ("shape", "warps", "lanes", "lane_axes", "warp_axes"),
    [
        ((8, 8, 4, 8), 8, 32, (1, 1, 4, 8), (1, 8, 1, 1)),
        ((8, 8, 8), 8, 32, (1, 4, 8), (4, 2, 1)),
        ((32, 32), 1, 32, (1, 32), (1, 1)),
        ((16, 128), 4, 64, (1, 64), (2, 2)),
        ((8,), 4, 32, (32,), (4,)),
    ],
)
def test_the_default_layout_is_tritons(
    shape: tuple[int, ...], warps: int, lanes: int, lane_axes: tuple[int, ...], warp_axes: tuple[int, ...]
) -> None:
    layout = default_layout(shape, warps, lanes)
    assert (layout.lanes, layout.warps) == (lane_axes, warp_axes)


def test_accesses_are_read_with_the_line_of_the_innermost_function() -> None:
    text = f"""#blocked = {BLOCKED}
#loc1 = loc("/somewhere/kernel.py":12:3)
#loc2 = loc("/somewhere/helper.py":34:5)
    %1 = tt.load %p : !tt.ptr<i32> loc(#loc1)
    %x_2 = tt.load %q, %m, %o : tensor<32x!tt.ptr<f32>, #ttg.slice<{{dim = 0, parent = #blocked}}>> loc(#loc4)
    tt.store %3, %y, %4 {{cache = 1 : i32}} : tensor<8x32x!tt.ptr<bf16>, #blocked> loc(#loc1)
    amdg.buffer_store %47, %own_301[%channel_36] : tensor<8x32xf32, #blocked> loc(#loc2)
#loc3 = loc(callsite(#loc2 at #loc1))
#loc4 = loc("x"(#loc3))
"""
    assert read_accesses(text) == [
        ("kernel.py", 12, False, (), ""),
        ("helper.py", 34, False, (32,), f"#ttg.slice<{{dim = 0, parent = {BLOCKED}}}>"),
        ("kernel.py", 12, True, (8, 32), BLOCKED),
        ("helper.py", 34, True, (8, 32), BLOCKED),
    ]
