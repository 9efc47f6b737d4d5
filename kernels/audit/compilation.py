"""Proof without a GPU that the Triton kernels compile for every supported GPU and keep their values in registers.

A kernel is compiled once: what it takes of a GPU, its machine code by blocks, and what says how often they run, are
kept in the cache (GEOMANO_CACHE), under a key of the kernel's sources, the version of Triton, the variant and the GPU.
Triton is imported where it is used.
"""

import hashlib
import json
import re
import subprocess
import tempfile
import time
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geomano_hpc.atomic import write_json
from geomano_hpc.kernels.audit.calls import Call
from geomano_hpc.kernels.cache import cache_folder

if TYPE_CHECKING:
    from geomano_hpc.kernels.audit.instructions import Counted
    from geomano_hpc.kernels.audit.variants import Launch, Variant

# Backend, architecture and warp size, as Triton names them. gfx1100 (RDNA) stands for warps of 32 on AMD.
TARGETS: dict[str, tuple[str, int | str, int]] = {
    "sm_75": ("cuda", 75, 32),
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx90a": ("hip", "gfx90a", 64),
    "gfx942": ("hip", "gfx942", 64),
    "gfx1100": ("hip", "gfx1100", 32),
}
OLDEST = ("sm_75", "gfx90a")
COMPILE_ONLY = ("gfx1100",)
_AUDIT = Path(__file__).parent


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
    seconds: float = 0.0  # that the compilation took, when it was made
    blocks: list[dict[str, Any]] = field(default_factory=list, repr=False)  # of NVIDIA's machine code (audit/sass)
    ttgir: str = field(default="", repr=False)  # what audit/structure reads


def for_target(call: Call, target: str) -> Call:
    """The call as the backend plans it on such a GPU."""
    maker, _, lanes = TARGETS[target]
    return replace(call, lanes=lanes, amd=maker == "hip")


def rows_of(call: Call, target: str) -> list[Row]:
    """The kernels of a call, each compiled for a GPU or known from before."""
    from geomano_hpc.kernels.audit.variants import launches_of

    found = launches_of(for_target(call, target))
    steps = {launch.variant: f"{launch.part}, {launch.step}" for launch in reversed(found.launches)}
    return [replace(known(variant, target), kernel=f"{call.label}: {steps[variant]}") for variant in found.variants]


def instructions_of(launch: "Launch", target: str = "sm_80") -> "Counted":
    """Warp instructions that a launch executes on a GPU of NVIDIA."""
    from geomano_hpc.kernels.audit.instructions import count
    from geomano_hpc.kernels.audit.sass import Block
    from geomano_hpc.kernels.audit.structure import CountingError, Structure

    row = known(launch.variant, target)
    blocks = [Block(**block) for block in row.blocks]
    try:
        return count(Structure(row.ttgir), blocks, launch.grid, dict(launch.integers), launch.variant.warps)
    except CountingError as reason:
        raise CountingError(f"{launch.part}, {launch.step} for {target}: {reason}") from None


def known(variant: "Variant", target: str) -> Row:
    path = cache_folder() / "compilations" / f"{_key(variant, target)}.json"
    if path.exists():
        return Row(**json.loads(path.read_text(encoding="utf-8")))
    row = compile_variant(variant, target)
    write_json(path, asdict(row))
    return row


def _key(variant: "Variant", target: str) -> str:
    import triton

    sources = f"{_sources()} {_kernel(variant).cache_key}"
    content = json.dumps([triton.__version__, target, TARGETS[target], astuple(variant)], default=str)
    return hashlib.sha256(f"{sources} {content}".encode()).hexdigest()[:32]


@lru_cache
def _sources() -> str:
    """Of what reads the compiler's answer; Triton itself has a key of a kernel's sources and what it calls."""
    files = [_AUDIT / name for name in ("compilation.py", "sass.py", "structure.py")]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def launches_key(launches: "list[Launch]") -> str:
    """Of everything that decides which bytes launches move."""
    rows = [
        [astuple(one.variant), _kernel(one.variant).cache_key, one.grid, sorted(one.names.items())] for one in launches
    ]
    source = (_AUDIT / "traffic.py").read_text(encoding="utf-8")
    return hashlib.sha256(json.dumps([source, rows], default=str).encode()).hexdigest()[:32]


def _kernel(variant: "Variant") -> Any:
    return getattr(import_module(variant.module), variant.kernel)


def compile_variant(variant: "Variant", target_name: str) -> Row:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from geomano_hpc.kernels.audit import sass
    from geomano_hpc.kernels.audit.structure import prune

    kernel, target = _kernel(variant), GPUTarget(*TARGETS[target_name])
    position = {name: (index,) for index, name in enumerate(kernel.arg_names)}
    hints: dict[tuple[int], list[list[Any]]] = {position[name]: [["tt.divisibility", 16]] for name in variant.divisible}
    if target.backend == "hip":
        for name in variant.near:
            hints.setdefault(position[name], []).append(["tt.pointer_range", 32])
    source = ASTSource(
        kernel,
        dict(variant.signature),
        constexprs={position[name]: value for name, value in variant.constants},
        attrs=hints,
    )
    started = time.perf_counter()
    compiled = triton.compile(source, target=target, options=dict(variant.options))
    took = time.perf_counter() - started
    shared, kept = compiled.metadata.shared, prune(compiled.asm["ttgir"])
    if target.backend == "cuda":
        registers, spill = _nvidia_resources(compiled.asm["cubin"])
        atomics = len(re.findall(r"^\s*(?:@%p\d+\s+)?(?:atom|red)\.", compiled.asm["ptx"], re.MULTILINE))
        blocks = sass.as_json(sass.blocks_of(sass.disassemble(compiled.asm["cubin"])))
        return Row(variant.kernel, target_name, registers, shared, spill, atomics, 0, took, blocks, kept)
    assembly = compiled.asm["amdgcn"]

    def entry(name: str) -> int:
        match = re.search(rf"\.{name}:\s+(\d+)", assembly)
        assert match, f"no .{name} in the assembly for {target_name}"
        return int(match.group(1))

    spill = 4 * entry("vgpr_spill_count") + entry("private_segment_fixed_size")
    atomics = len(re.findall(r"^\s*(?:global|flat|buffer)_atomic", assembly, re.MULTILINE))
    registers = entry("vgpr_count")
    return Row(
        variant.kernel, target_name, registers, shared, spill, atomics, entry("sgpr_spill_count"), took, [], kept
    )


def _nvidia_resources(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack and local memory, which is where spilled registers go."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack, local = (int(re.search(rf"{key}:(\d+)", report).group(1)) for key in ("REG", "STACK", "LOCAL"))  # type: ignore[union-attr]
    return registers, stack + local
