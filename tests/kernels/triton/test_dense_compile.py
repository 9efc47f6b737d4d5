"""The dense kernels compiled ahead of time for every supported GPU: no spills, no atomics, wide loads, and nothing new
for another batch or grid."""

import re
from typing import Any

import pytest
import torch

from geomano_hpc.kernels.audit.compilation import TARGETS, _nvidia_resources

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from geomano_hpc.kernels.triton import launching  # noqa: E402
from geomano_hpc.kernels.triton.dense import host  # noqa: E402

POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
# Activation, taps and rings: one with walls, and the largest.
CONVOLUTIONS = [("silu", (7, 7), (False, False)), ("gelu", (13, 13), (True, True))]
Variant = tuple[Any, tuple[tuple[str, str], ...], tuple[tuple[str, Any], ...]]  # kernel, types, constants


def variants_of(E: int, dtype: torch.dtype, grid: tuple[int, int, int] = (4, 85, 85)) -> list[Variant]:
    """What every operator launches for such activations, with parameters in float32."""
    found: dict[Variant, None] = {}

    def note(kernel: Any, _grid: Any, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        names = [name for name in kernel.arg_names if name not in constants]
        types = {name: type_of(argument) for name, argument in zip(names, arguments, strict=True)}
        found[kernel, tuple(types.items()), tuple(constants.items())] = None

    z = torch.empty(*grid, E, dtype=dtype, device="meta")
    weight, taps = torch.empty(E, device="meta"), torch.empty(E, 1, 3, 3, device="meta")
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(launching, "launch", note)
        host.conv_silu(z, taps, weight)
        host.conv_silu_backward(z, z, taps, weight)
        host.layer_norm(z.float(), weight, weight, 1e-5, dtype)
        host.layer_norm_backward(z, z.float(), weight, weight, 1e-5)
        host.norm_gate(z, z, weight, weight, 1e-5)
        host.norm_gate_backward(z, z, z, weight, weight, 1e-5)
        host.gate(z, z)
        host.gate_backward(z, z, z)
        host.gelu(z)
        host.gelu_backward(z, z)
        host.negative_exp(taps)
        for activation, size, wrap in CONVOLUTIONS:
            taps = torch.empty(E, 1, *size, device="meta")
            host.depthwise_conv(z, taps, weight, activation, wrap)
            host.depthwise_conv_backward(z, z, taps, weight, activation, wrap)
    return list(found)


def type_of(argument: Any) -> str:
    if isinstance(argument, torch.Tensor):
        return POINTERS[argument.dtype]
    return "fp32" if isinstance(argument, float) else "i32"


def compile_for(target: str, variant: Variant) -> Any:
    kernel, types, constants = variant[0], dict(variant[1]), dict(variant[2])
    position = {name: (index,) for index, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        kernel,
        {name: types.get(name, "constexpr") for name in kernel.arg_names},
        constexprs={position[name]: value for name, value in constants.items() if name in position},
        attrs={position[name]: [["tt.divisibility", 16]] for name, kind in types.items() if kind.startswith("*")},
    )
    options = {name: constants[name] for name in OPTIONS}
    return triton.compile(source, target=GPUTarget(*TARGETS[target]), options=options)


@pytest.mark.compile
@pytest.mark.slow(20)
@pytest.mark.parametrize("target", TARGETS)
def test_no_spills_and_no_atomics(target: str) -> None:
    for E, dtype in ((64, torch.float32), (256, torch.bfloat16)):
        for variant in variants_of(E, dtype):
            compiled, name = compile_for(target, variant), variant[0].__name__
            if TARGETS[target][0] == "cuda":
                registers, spilled = _nvidia_resources(compiled.asm["cubin"])
                atomics = re.findall(r"^\s*(?:@%p\d+\s+)?(?:atom|red)\.", compiled.asm["ptx"], re.MULTILINE)
            else:
                text = compiled.asm["amdgcn"]
                counts = ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size")
                spilled = sum(int(number) for key in counts for number in re.findall(rf"\.{key}:\s+(\d+)", text))
                registers = int(re.findall(r"\.vgpr_count:\s+(\d+)", text)[0])
                atomics = re.findall(r"^\s*(?:global|flat|buffer)_atomic", text, re.MULTILINE)
            assert spilled == 0, f"{name} for E {E}, {dtype}: {registers} registers"
            assert not atomics, name


@pytest.mark.compile
def test_loads_are_wide_and_norms_of_64_channels_stay_in_a_warp() -> None:
    """16 bytes of a thread at a time in the pass over memory; the convolution's gradient has two numbers a thread."""
    for variant in variants_of(64, torch.float32):
        name, assembly = variant[0].__name__, compile_for("sm_80", variant).asm["ptx"]
        wide = 2 if name == "conv_silu_backward_kernel" else 4
        if name.startswith("depthwise"):  # a number a thread, of neighbouring channels
            assert "ld.global.b32" in assembly
            assert "st.global.b32" in assembly
        elif name not in ("negative_exp_kernel", "sum_parts_kernel"):
            assert f"ld.global.v{wide}.b32" in assembly, name
            assert f"st.global.v{wide}.b32" in assembly, name
        if name in ("layer_norm_kernel", "norm_gate_kernel"):
            assert "bar.sync" not in assembly, name


def test_another_batch_or_grid_compiles_nothing_new() -> None:
    for E, dtype in ((64, torch.float32), (37, torch.bfloat16)):
        known = variants_of(E, dtype)
        for grid in ((1, 1, 1), (7, 16, 160), (32, 421, 421), (1, 1, 8192)):
            assert variants_of(E, dtype, grid) == known
    for kernel, types, _ in known:
        assert {name for name, kind in types if kind == "i32"} == set(kernel.do_not_specialize), kernel
