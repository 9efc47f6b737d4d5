"""Proof without a GPU that the Triton kernels compile for every supported GPU and keep their values in registers.

A kernel is compiled once: what it takes of a GPU is kept in the cache (GEOMANO_CACHE), under a key of the kernels'
sources, the version of Triton, the variant and the GPU. Triton is imported where it is used.
"""

import hashlib
import json
import re
import subprocess
import tempfile
from dataclasses import asdict, astuple, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from geomano_hpc.atomic import write_json
from geomano_hpc.kernels.audit.calls import Call
from geomano_hpc.kernels.cache import cache_folder

if TYPE_CHECKING:
    from geomano_hpc.kernels.audit.variants import Variant

# Backend, architecture and warp size, as Triton names them.
TARGETS: dict[str, tuple[str, int | str, int]] = {
    "sm_75": ("cuda", 75, 32),
    "sm_80": ("cuda", 80, 32),
    "sm_90": ("cuda", 90, 32),
    "sm_100": ("cuda", 100, 32),
    "gfx90a": ("hip", "gfx90a", 64),
    "gfx942": ("hip", "gfx942", 64),
}
OLDEST = ("sm_75", "gfx90a")
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


def rows_of(call: Call, target: str) -> list[Row]:
    """The kernels of a call, each compiled for a GPU or known from before."""
    from geomano_hpc.kernels.audit.variants import variants_of

    return [replace(_known(variant, target), kernel=f"{call.label}: {variant.step}") for variant in variants_of(call)]


def _known(variant: "Variant", target: str) -> Row:
    path = cache_folder() / "compilations" / f"{_key(variant, target)}.json"
    if path.exists():
        return Row(**json.loads(path.read_text(encoding="utf-8")))
    row = compile_variant(variant, target)
    write_json(path, asdict(row))
    return row


def _key(variant: "Variant", target: str) -> str:
    import triton

    content = json.dumps([triton.__version__, target, TARGETS[target], astuple(variant)[1:]])
    return hashlib.sha256(f"{_sources()} {content}".encode()).hexdigest()[:32]


@lru_cache
def _sources() -> str:
    """Of the kernels, and of what reads the compiler's answer."""
    files = [*sorted((_AUDIT.parent / "triton").glob("*.py")), *sorted(_AUDIT.glob("*.py"))]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def compile_variant(variant: "Variant", target_name: str) -> Row:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from geomano_hpc.kernels.audit.variants import KERNELS
    from geomano_hpc.kernels.triton.blocks import warps

    kernel, target = KERNELS[variant.kernel], GPUTarget(*TARGETS[target_name])
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
        return Row(variant.step, target_name, registers, shared, spill, atomics, 0)
    assembly = compiled.asm["amdgcn"]

    def entry(name: str) -> int:
        match = re.search(rf"\.{name}:\s+(\d+)", assembly)
        assert match, f"no .{name} in the assembly for {target_name}"
        return int(match.group(1))

    spill = 4 * entry("vgpr_spill_count") + entry("private_segment_fixed_size")
    atomics = len(re.findall(r"^\s*(?:global|flat|buffer)_atomic", assembly, re.MULTILINE))
    return Row(variant.step, target_name, entry("vgpr_count"), shared, spill, atomics, entry("sgpr_spill_count"))


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
