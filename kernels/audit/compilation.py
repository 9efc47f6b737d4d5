"""Proof without a GPU that the Triton kernels compile for every supported GPU and keep their values in registers.

`python -m geomano_hpc.kernels.audit.compilation [--json]` compiles what the recipes launch, for six GPUs, and prints
registers, shared memory and spills. The launches are recorded from the backend itself, run on meta tensors, and
specialised as Triton's launcher would (constants, divisibility by 16). TRITON_INTERPRET must not be set: Triton reads
it when a kernel is defined.
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
from geomano_hpc.kernels.orders import order_set
from geomano_hpc.kernels.triton import scan as triton_scan
from geomano_hpc.kernels.triton.backward import backward_kernel
from geomano_hpc.kernels.triton.backward_grid import grid_backward_kernel
from geomano_hpc.kernels.triton.blocks import NOMINAL_MULTIPROCESSORS, backward_blocks, forward_blocks, warps
from geomano_hpc.kernels.triton.chunks import combine_kernel
from geomano_hpc.kernels.triton.forward import forward_kernel

TARGETS = {
    "sm_75": GPUTarget("cuda", 75, 32),
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx90a": GPUTarget("hip", "gfx90a", 64),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
OLDEST = ("sm_75", "gfx90a")


class Shape(NamedTuple):
    """The scan of a recipe."""

    name: str
    kind: str
    batch: int
    grid: int
    channels: int
    rank: int


DARCY = Shape("darcy", "2d", 4, 85, 128, 8)
NAVIER_STOKES = Shape("navier_stokes", "1d", 2, 64, 512, 32)
# A batch that fills a GPU by itself gets the wide blocks.
FULL = [
    DARCY._replace(name="darcy, batch 256", batch=256),
    NAVIER_STOKES._replace(name="navier_stokes, batch 64", batch=64),
]


@dataclass(frozen=True)
class Variant:
    """One kernel as the launcher would specialise it."""

    name: str
    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    divisible: tuple[str, ...]
    threads: int

    @property
    def code(self) -> tuple[Any, ...]:
        """What makes it another kernel than others."""
        return self.kernel, self.signature, self.constants, self.threads


@dataclass(frozen=True)
class Row:
    """What a compiled kernel takes of a GPU. Spills are bytes of memory per thread; 0 is the requirement."""

    kernel: str
    target: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    atomics: int  # instructions; 0, so that two runs give the same bits
    scalar_spills: int  # AMD: scalar registers kept in lanes of vector registers, which is not memory


class Case(NamedTuple):
    """A call of the scan, forward and backward."""

    shape: Shape
    dtype: torch.dtype = torch.float32
    low_rank: bool = True
    needs_R: bool = False
    correction: str = "equation"  # or "state", or "none" for the vanilla SSM
    processors: int = NOMINAL_MULTIPROCESSORS


def recipe_cases() -> list[Case]:
    """The recipes in two precisions, with a fixed and a learnable R, and with a full GPU."""
    recipes = (DARCY, NAVIER_STOKES)
    cases = [Case(shape, dtype) for shape, dtype in product(recipes, (torch.float32, torch.bfloat16))]
    cases += [Case(shape, needs_R=True) for shape in recipes]
    return cases + [Case(shape) for shape in FULL]


def further_cases() -> list[Case]:
    """A full dt, the other kind of scan, the third precision, the other corrections, and what other GPUs' numbers of
    multiprocessors lead to."""
    recipes = (DARCY, NAVIER_STOKES)
    cases = [Case(shape, low_rank=False, needs_R=True) for shape in recipes]
    cases += [Case(shape) for shape in (DARCY._replace(kind="1d"), NAVIER_STOKES._replace(kind="2d"))]
    cases += [Case(shape, torch.float16) for shape in recipes]
    cases += [Case(shape, correction=name) for shape, name in product(recipes, ("none", "state"))]
    return cases + [Case(shape, processors=count) for shape, count in product((*recipes, *FULL), (72, 132, 304))]


def variants_of(cases: list[Case]) -> list[Variant]:
    """What the cases launch, each kernel once."""
    found: dict[tuple[Any, ...], Variant] = {}
    for case in cases:
        for variant in _launched(case):
            found.setdefault(variant.code, variant)
    return list(found.values())


def _launched(case: Case) -> list[Variant]:
    shape, dtype = case.shape, case.dtype
    correction = "equation" if case.correction == "none" else case.correction
    settings = ScanSettings(order_set("paper"), shape.kind, correction)
    K, N, E = len(settings.orders), 16, shape.channels

    def meta(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device="meta")

    grid = (shape.batch, shape.grid, shape.grid)
    rank = shape.rank if case.low_rank else E
    dt, B, C = meta(*grid, K, rank + 2 * N, dtype=dtype).split([rank, N, N], dim=-1)
    inputs = ScanInputs(
        meta(*grid, E, dtype=dtype), dt, meta(K, E, N), B, C, meta(K, E),
        None if case.correction == "none" else meta(K, E, N), meta(K, E), meta(K, E, rank) if case.low_rank else None,
    )  # fmt: skip
    name = f"{shape.name} {shape.kind} {_TYPES[dtype]} {'low-rank' if case.low_rank else 'full'} dt"
    name += ", learnable R" if case.needs_R else ""
    name += "" if case.correction == "equation" else f", correction {case.correction}"
    sizes = (*grid, E, rank if case.low_rank else 0, shape.kind, case.processors, dtype.itemsize)
    with _recorded() as launches:
        _, carries = triton_scan.forward(inputs, settings, True, _blocks=forward_blocks(*sizes))
        triton_scan.backward(inputs.x, inputs, settings, carries, case.needs_R, _blocks=backward_blocks(*sizes))
    return [_specialised(name, kernel, arguments) for kernel, arguments in launches]


@contextmanager
def _recorded() -> Iterator[list[tuple[Any, dict[str, Any]]]]:
    launches: list[tuple[Any, dict[str, Any]]] = []
    launch = triton_scan._launch
    triton_scan._launch = lambda kernel, grid, arguments: launches.append((kernel, arguments))
    try:
        yield launches
    finally:
        triton_scan._launch = launch


def _specialised(name: str, kernel: Any, arguments: dict[str, Any]) -> Variant:
    full_name = f"{name}: {_pass(kernel, arguments)}"
    signature, constants, divisible = [], [], []
    constexprs = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    fixed = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
    for parameter in kernel.arg_names:
        value = arguments[parameter]
        if isinstance(value, torch.Tensor):
            signature.append((parameter, f"*{_TYPES[value.dtype]}"))
            if value.storage_offset() * value.element_size() % 16 == 0:
                divisible.append(parameter)
        elif parameter in constexprs or (value == 1 and parameter not in fixed):
            signature.append((parameter, "constexpr"))
            constants.append((parameter, value))
        else:
            signature.append((parameter, "i32" if abs(value) < 2**31 else "i64"))
            if value % 16 == 0 and parameter not in fixed:
                divisible.append(parameter)
    threads = 32 * arguments["num_warps"]  # meta tensors are planned as for NVIDIA
    return Variant(full_name, kernel.__name__, tuple(signature), tuple(constants), tuple(divisible), threads)


_TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_KERNELS = {
    kernel.__name__: kernel for kernel in (forward_kernel, combine_kernel, backward_kernel, grid_backward_kernel)
}


def _pass(kernel: Any, arguments: dict[str, Any]) -> str:
    if kernel is combine_kernel:
        return "combine chunks"
    if kernel is not forward_kernel:
        return "backward"
    if arguments["OUTPUT"]:
        return "forward"
    return ("adjoint " if arguments["ADJOINT"] else "") + ("chunk sweep" if arguments["ENDS"] else "carries sweep")


def compile_variant(variant: Variant, target_name: str) -> Row:
    kernel, target = _KERNELS[variant.kernel], TARGETS[target_name]
    position = {name: (index,) for index, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        kernel,
        dict(variant.signature),
        constexprs={position[name]: value for name, value in variant.constants},
        attrs={position[name]: [["tt.divisibility", 16]] for name in variant.divisible},
    )
    options = {"num_warps": warps(variant.threads, target.warp_size), "num_stages": 1}
    compiled = triton.compile(source, target=target, options=options)
    shared = compiled.metadata.shared
    if target.backend == "cuda":
        registers, spill = _nvidia_resources(compiled.asm["cubin"])
        atomics = len(re.findall(r"^\s*(?:@%p\d+\s+)?(?:atom|red)\.", compiled.asm["ptx"], re.MULTILINE))
        return Row(variant.name, target_name, registers, shared, spill, atomics, 0)
    assembly = compiled.asm["amdgcn"]

    def entry(name: str) -> int:
        match = re.search(rf"\.{name}:\s+(\d+)", assembly)
        assert match, f"no .{name} in the assembly for {target_name}"
        return int(match.group(1))

    spill = 4 * entry("vgpr_spill_count") + entry("private_segment_fixed_size")
    atomics = len(re.findall(r"^\s*(?:global|flat|buffer)_atomic", assembly, re.MULTILINE))
    return Row(variant.name, target_name, entry("vgpr_count"), shared, spill, atomics, entry("sgpr_spill_count"))


def _nvidia_resources(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack and local memory, which is where spilled registers go."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack, local = (int(re.search(rf"{key}:(\d+)", report).group(1)) for key in ("REG", "STACK", "LOCAL"))  # type: ignore[union-attr]
    return registers, stack + local


def _compile(job: tuple[Variant, str]) -> Row:
    return compile_variant(*job)


def compile_all(targets: list[str] | None = None, workers: int = 2) -> list[Row]:
    """Every variant of the recipes for every target, and the further ones for the oldest of each maker."""
    wanted = targets or list(TARGETS)
    recipes = variants_of(recipe_cases())
    known = {variant.code for variant in recipes}
    further = [variant for variant in variants_of(further_cases()) if variant.code not in known]
    jobs = list(product(recipes, wanted))
    jobs += list(product(further, [target for target in OLDEST if target in wanted]))
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(_compile, jobs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="rows as JSON instead of a table")
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), help="default: all")
    arguments = parser.parse_args()
    rows = compile_all(arguments.targets)
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print(f"{'kernel':64} {'target':8} registers  shared  spills  scalar spills")
    for row in rows:
        print(
            f"{row.kernel:64} {row.target:8} {row.registers:9} {row.shared_bytes:7} "
            f"{row.spill_bytes:7} {row.scalar_spills:14}"
        )


if __name__ == "__main__":
    main()
