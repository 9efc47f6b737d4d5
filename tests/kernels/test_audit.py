"""The tools of the audit, on kernels whose counts are known: loops, branches, unrolling, layouts, recorded launches."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from geomano_hpc.kernels.audit import compilation, instructions, layouts
from geomano_hpc.kernels.audit.sass import Block, blocks_of, instruction_class, loops_of
from geomano_hpc.kernels.audit.structure import CountingError, Structure, prune
from geomano_hpc.kernels.audit.variants import Launch, Recorded, recorded
from geomano_hpc.kernels.triton import launching
from tests.support import counted_kernels as kernels

OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}


def meta(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


def launched(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> Launch:
    with recorded() as found:
        launching.launch(kernel, grid, arguments, {**constants, **OPTIONS})
    return found.launches[0]


def branching(programs: int, rows: int, first_kind: int) -> Launch:
    return launched(kernels.branching, (programs,), meta(1024), meta(1024), rows, 512, first_kind, BE=128)


@pytest.mark.compile
def test_executed_loads_are_rounds_times_programs_though_the_loop_is_unrolled() -> None:
    """Three programs walk `rows` rows, one walks four: a load of one warp each, and a store."""
    warps = OPTIONS["num_warps"]
    for rows in (100, 101, 103):
        counted = compilation.instructions_of(branching(4, rows, 3))
        assert counted.classes["LDG"] == pytest.approx(warps * (3 * rows + 4), rel=0.02)
        assert counted.classes["STG"] == warps * 4
        assert counted.busiest > 0.9 * counted.total / 3
    few = compilation.instructions_of(branching(4, 0, 3))
    assert few.classes["LDG"] <= warps * (4 + 3)


@pytest.mark.compile
def test_exponentials_of_nested_loops_whose_bounds_depend_on_each_other() -> None:
    """Program p runs p + 1 outer rounds; round n has n inner ones, each with 16 elements a thread."""
    launch = launched(kernels.triangle, (5,), meta(4096), meta(4096), 1, BE=128, P=16)
    counted = compilation.instructions_of(launch)
    rounds = sum(sum(range(p + 1)) for p in range(5))
    assert counted.exponentials == pytest.approx(16 * 4 * rounds, rel=0.05)
    assert counted.programs == 5


@pytest.mark.compile
def test_machine_code_that_does_not_fit_the_kernel_is_no_count() -> None:
    launch = launched(kernels.triangle, (5,), meta(4096), meta(4096), 1, BE=128, P=16)
    row = compilation.known(launch.variant, "sm_80")
    blocks = [Block(**block) for block in row.blocks]

    def count(changed: list[Block]) -> None:
        instructions.count(Structure(row.ttgir), changed, launch.grid, dict(launch.integers), launch.variant.warps)

    count(blocks)
    without = [replace(block, exponentials=block.exponentials // 2, bytes_moved=0) for block in blocks]
    with pytest.raises(CountingError, match="exponentials"):
        count(without)
    elsewhere = [replace(block, lines={"other.py:1": 1}, last_line="other.py:1") for block in blocks]
    with pytest.raises(CountingError, match="none of the kernel's loops"):
        count(elsewhere)
    other = compilation.known(branching(4, 100, 3).variant, "sm_80")
    with pytest.raises(CountingError, match="not known from the arguments"):
        Structure(other.ttgir).times((4,), {})


def test_times_of_loops_and_branches_by_program() -> None:
    text = """
tt.func public @k(%n: i32, %limit: i32) {
%c0 = arith.constant 0 : i32 @@ k.py:1
%c1 = arith.constant 1 : i32 @@ k.py:1
%p = tt.get_program_id x : i32 @@ k.py:2
%less = arith.cmpi slt, %p, %limit : i32 @@ k.py:3
scf.if %less { @@
%r = scf.for %i = %c0 to %n step %c1 iter_args(%last = %c0) -> (i32) : i32 { @@
%more = arith.addi %last, %i : i32 @@ k.py:5
scf.for %j = %c0 to %last step %c1 : i32 { @@
} @@ k.py:6
scf.yield %more : i32 @@ k.py:5
} @@ k.py:4
} else { @@
} @@ k.py:3
tt.return @@ k.py:9
}
"""
    structure = Structure(text)
    times = {(region.kind, region.line): found for region, found in structure.times((3,), {0: 5, 1: 2}).items()}
    np.testing.assert_array_equal(times["for", "k.py:4"], [5, 5, 0])
    np.testing.assert_array_equal(times["for", "k.py:6"], [0 + 0 + 1 + 3 + 6] * 2 + [0])
    np.testing.assert_array_equal(times["else", "k.py:3"], [0, 0, 1])


def test_locations_are_those_where_a_line_was_written() -> None:
    text = """
#blocked = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#loc = loc("/a/kernel.py":5:0)
#loc3 = loc(callsite(#loc4 at #loc))
tt.func public @k(%x: !tt.ptr<f32> loc("x"(#loc)), %n: i32 loc("n"(#loc))) {
  %a = math.exp2 %b : tensor<128xf32, #blocked> loc(#loc3)
}
#loc4 = loc("/a/arithmetic.py":7:3)
"""
    structure = Structure(prune(text))
    assert structure.arguments == ["%x~1", "%n~2"]
    assert [op.line for op in structure.kernel.operations] == ["arithmetic.py:7"]
    assert structure.exponentials(structure.kernel) == 1


def test_registers_and_warps_of_layouts() -> None:
    aliases = {
        "#blocked": "#ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [2, 2], "
        "order = [1, 0]}>",
        "#linear": "#ttg.linear<{register = [[1, 0], [0, 0]], lane = [[0, 1], [0, 2]], warp = [[2, 0]], block = []}>",
    }
    tensor = layouts.tensor_type("tensor<16x64xf32, #blocked>")
    assert tuple(tensor) == ((16, 64), "f32", "#blocked")
    assert layouts.registers(tensor, aliases) == 2 * 4
    assert (layouts.warps_along(tensor, 0, aliases), layouts.warps_along(tensor, 1, aliases)) == (2, 2)
    sliced = layouts.tensor_type("tensor<16x!tt.ptr<bf16>, #ttg.slice<{dim = 1, parent = #blocked}>>")
    assert (layouts.registers(sliced, aliases), sliced.element_bytes) == (2, 2)
    assert layouts.warps_along(sliced, 0, aliases) == 2
    small = layouts.tensor_type("tensor<4x4xf32, #linear>")
    assert (layouts.registers(small, aliases), layouts.warps_along(small, 0, aliases)) == (2, 2)
    assert layouts.registers(layouts.tensor_type("!tt.ptr<f32>"), aliases) == 1


@pytest.mark.compile
def test_a_scan_over_warps_is_found() -> None:
    across = compilation.known(launched(kernels.scanning, (1,), meta(4096), meta(4096), P=128, BE=1).variant, "sm_80")
    inside = compilation.known(launched(kernels.scanning, (1,), meta(4096), meta(4096), P=8, BE=128).variant, "sm_80")
    assert [found.warps for found in layouts.scans(across.ttgir)] == [4]
    assert [found.warps for found in layouts.scans(inside.ttgir)] == [1]


def test_loops_of_machine_code() -> None:
    """An inner loop that is left by a call, as ptxas does, in an outer one; and what is never reached."""
    lines = [
        ("0000", "MOV R1, c[0x0][0x28]"), ".L_x_1:", ("0010", "IMAD.MOV.U32 R2, RZ, RZ, R1"), ".L_x_2:",
        ("0020", "LDG.E.128 R4, [R2.64]"), ("0030", "MUFU.EX2 R3, R4"), ("0040", "@!P1 CALL.REL.NOINC `(.L_x_3)"),
        ("0050", "BRA `(.L_x_2)"), ".L_x_3:", ("0060", "@P0 BRA `(.L_x_1)"), ("0070", "EXIT"), ".L_x_4:",
        ("0080", "BRA `(.L_x_4)"),
    ]  # fmt: skip
    text = "\n".join(line if isinstance(line, str) else f"        /*{line[0]}*/   {line[1]} ;" for line in lines)
    blocks = blocks_of(text)
    loops = loops_of(blocks)
    assert [(loop.parent, len(loop.blocks)) for loop in loops] == [(None, 4), (0, 2)]
    inner = [blocks[n] for n in loops[1].blocks]
    assert (sum(b.exponentials for b in inner), sum(b.bytes_moved for b in inner)) == (1, 16)


def test_classes_of_instructions() -> None:
    found = {
        code: instruction_class(code)
        for code in (
            "MUFU.EX2",
            "IMAD.MOV.U32",
            "IMAD",
            "FSETP.GT.AND",
            "FSEL",
            "LDS.128",
            "LDG.E",
            "STG.E",
            "SHFL.BFLY",
        )
    }
    assert list(found.values()) == ["MUFU", "MOV", "INT", "SETP", "FSEL", "LDS/STS", "LDG", "STG", "SHFL"]
    assert instruction_class("FMNMX") == "other"


def test_recorded_launches_are_specialised_as_triton_does() -> None:
    launch = branching(4, 100, 1)
    assert dict(launch.variant.signature) == {
        "x": "*fp32", "y": "*fp32", "rows": "i32", "E": "i32", "first_kind": "i32", "BE": "constexpr",
    }  # fmt: skip
    assert launch.names == {"rows": 100, "E": 512, "first_kind": 1}
    assert launch.integers == {2: 100, 3: 512, 4: 1}
    assert launch.variant.divisible == ()
    assert launch.variant == branching(7, 33, 16).variant
    plain = launched(kernels.triangle, (5,), meta(4096), meta(4096)[1:], 1, BE=128, P=16).variant
    assert plain.divisible == ("x",)
    assert dict(plain.constants)["first"] == 1  # Triton makes a constant of it
    with pytest.raises(TypeError, match="triangle is launched without its constant P"):
        launched(kernels.triangle, (5,), meta(4096), meta(4096), 1, BE=128)


def test_torchs_own_kernels_count_as_launches_and_views_do_not() -> None:
    found: Recorded
    part = ["forward"]
    with recorded(part) as found:
        x = meta(4, 8)
        y = torch.empty_like(x)
        z = x.view(8, 4).transpose(0, 1)[:2]
        part[0] = "backward"
        z.sum(), y.to(torch.bfloat16), z.contiguous()
    assert found.torch_kernels == [("backward", "sum"), ("backward", "_to_copy"), ("backward", "clone")]
    assert (found.of("forward").count, found.of("backward").count) == (0, 3)


def test_labels_tell_calls_apart() -> None:
    from geomano_hpc.bench.kernels.compilation import jobs

    labels = [f"{call.label}, {target}" for call, target in jobs()]
    assert len(set(labels)) == len(labels)
    assert any(re.search("dstate 64, gfx90a", label) for label in labels)
