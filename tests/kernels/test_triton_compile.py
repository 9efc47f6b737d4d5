"""Every Triton kernel compiles for every supported GPU, without a GPU, and spills nothing.

What was compiled before, of the same sources by the same Triton, is known from the user's cache.
"""

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from geomano_hpc.bench import recipes
from geomano_hpc.bench.kernels.compilation import jobs
from geomano_hpc.bench.kernels.gpu_audit import call_of
from geomano_hpc.kernels.audit import compilation, layouts
from geomano_hpc.kernels.audit.calls import Call
from geomano_hpc.kernels.audit.compilation import TARGETS, Row, rows_of

if TYPE_CHECKING:
    from geomano_hpc.kernels.audit.variants import Variant

pytest.importorskip("triton")

SUMS = ("sum_directions", "sum_gradients")  # which may add up over warps
SHARED_BYTES = 64 * 1024  # what a multiprocessor of the smallest of them has
JOBS = jobs()
SMALL = Call("small", "1d", 1, 2, 3, channels=16, dstate=1, rank=1)


@pytest.mark.compile
# Calls share kernels, so those for one GPU go to one worker (conftest.py), where each is compiled once.
@pytest.mark.parametrize(
    ("call", "target"),
    [pytest.param(call, target, id=f"{call.label}, {target}") for call, target in JOBS],
)
def test_kernels_of_a_call_compile_without_spills_and_atomics(call: Call, target: str) -> None:
    """And a scan never crosses warps, read off the layouts: a position is in the warp of the one before it."""
    rows = rows_of(call, target)
    assert {row.kernel.partition(": ")[2].partition(",")[0] for row in rows} == {"forward", "backward"}
    for row in rows:
        assert (row.spill_bytes, row.atomics) == (0, 0), row
        assert row.registers > 0, row
        assert row.shared_bytes <= SHARED_BYTES, row
        assert all(scan.warps == 1 for scan in layouts.scans(row.ttgir)), row.kernel
        if not any(name in row.kernel for name in SUMS):
            assert all(found.warps == 1 for found in layouts.scans(row.ttgir, "tt.reduce")), row.kernel


def test_calls_launch_every_kernel_in_every_role() -> None:
    import geomano_hpc.kernels.triton as package
    from geomano_hpc.kernels.audit.variants import launches_of

    files = (file.stem for file in Path(package.__file__).parent.glob("*.py"))
    modules = [import_module(f"{package.__name__}.{name}") for name in files if name != "__init__"]
    # What a host launches says which of its arguments are not specialised.
    written = {
        name
        for module in modules
        for name, found in vars(module).items()
        if getattr(found, "do_not_specialize", None) and found.fn.__module__ == module.__name__
    }
    launched = [launch for call in {call for call, _ in JOBS} for launch in launches_of(call).launches]
    assert {launch.variant.kernel for launch in launched} == written
    assert {target for _, target in JOBS} == set(TARGETS)


@pytest.mark.parametrize("name", recipes.NAMES)
def test_another_grid_or_batch_compiles_nothing_new(name: str) -> None:
    from geomano_hpc.kernels.audit.variants import launches_of

    call = call_of(name, recipes.scan(name))
    variants = set(launches_of(call).variants)
    for height, width, batch in ((64, 64, 2), (85, 85, 4), (33, 47, 1), (128, 96, 3), (1, 500, 2), (421, 421, 1)):
        other = set(launches_of(replace(call, height=height, width=width, batch=batch)).variants)
        assert other <= variants, f"{height} x {width}, batch {batch}"


def test_other_spacings_and_rings_compile_nothing_new() -> None:
    from geomano_hpc.kernels.audit.variants import launches_of

    call = replace(call_of("darcy", recipes.scan("darcy")), stretch=0.5, rings=1, own=(0.5, 0.0), hold=(2.0, 1.0))
    variants = set(launches_of(call).variants)
    for spacing, rings, width in (((2.3, 0.5), 2, 85), ((0.1, 1.0), 3, 12)):
        own, hold = (tuple(f(one) for one in spacing) for f in (lambda s: (1 / s - 1) / 2, lambda s: 1 / s))
        other = replace(call, stretch=spacing[0] / spacing[1], rings=rings, own=own, hold=hold, width=width)
        assert set(launches_of(other).variants) <= variants


def test_what_is_compiled_once_is_known_until_sources_triton_or_target_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton

    def compiler(variant: "Variant", target: str) -> Row:
        return Row(variant.kernel, target, variant.warps, 0, 0, 0, 0)

    def no_compiler(*_: object) -> None:
        raise RuntimeError("compiled again")

    monkeypatch.setenv("GEOMANO_CACHE", str(tmp_path))
    monkeypatch.setattr(compilation, "compile_variant", compiler)
    rows = rows_of(SMALL, "sm_80")
    assert len(rows) > 1
    monkeypatch.setattr(compilation, "compile_variant", no_compiler)
    assert rows_of(SMALL, "sm_80") == rows
    with pytest.raises(RuntimeError, match="compiled again"):
        rows_of(SMALL, "sm_90")
    with monkeypatch.context() as newer:
        newer.setattr(triton, "__version__", "99.0")
        with pytest.raises(RuntimeError, match="compiled again"):
            rows_of(SMALL, "sm_80")
    monkeypatch.setattr(compilation, "_sources", lambda: "edited")
    with pytest.raises(RuntimeError, match="compiled again"):
        rows_of(SMALL, "sm_80")
