"""Which kernels a call of the Triton backend launches, as Triton's launcher would specialise them.

The launches are recorded from the backend itself, run on meta tensors: constants, types, divisibility by 16.
TRITON_INTERPRET must not be set: Triton reads it when a kernel is defined.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from geomano_hpc.kernels.audit.calls import Call
from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
from geomano_hpc.kernels.orders import order_set
from geomano_hpc.kernels.triton import scan as triton_scan
from geomano_hpc.kernels.triton.backward import backward_kernel
from geomano_hpc.kernels.triton.backward_grid import grid_backward_kernel
from geomano_hpc.kernels.triton.blocks import backward_blocks, forward_blocks
from geomano_hpc.kernels.triton.chunks import combine_kernel
from geomano_hpc.kernels.triton.forward import forward_kernel

KERNELS = {
    kernel.__name__: kernel for kernel in (forward_kernel, combine_kernel, backward_kernel, grid_backward_kernel)
}
_TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class Variant:
    """One kernel as the launcher would specialise it."""

    step: str  # of the call: "forward", "backward", "chunk sweep", ...
    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    divisible: tuple[str, ...]
    threads: int


def variants_of(call: Call) -> list[Variant]:
    """What a call launches, each kernel once."""
    dtype: torch.dtype = getattr(torch, call.dtype)
    settings = ScanSettings(
        order_set(call.orders), call.kind, "equation" if call.correction == "none" else call.correction
    )
    K, N, E = len(settings.orders), call.dstate, call.channels

    def meta(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(sizes, dtype=dtype, device="meta")

    grid = (call.batch, call.height, call.width)
    rank = call.rank if call.low_rank else E
    dt, B, C = meta(*grid, K, rank + 2 * N, dtype=dtype).split([rank, N, N], dim=-1)
    inputs = ScanInputs(
        meta(*grid, E, dtype=dtype), dt, meta(K, E, N), B, C, meta(K, E),
        None if call.correction == "none" else meta(K, E, N), meta(K, E), meta(K, E, rank) if call.low_rank else None,
    )  # fmt: skip
    sizes = (*grid, E, rank if call.low_rank else 0, call.kind, call.processors, dtype.itemsize, N)
    with _recorded() as launches:
        _, carries = triton_scan.forward(inputs, settings, True, _blocks=forward_blocks(*sizes))
        blocks = backward_blocks(*sizes)
        triton_scan.backward(inputs.x, inputs, settings, carries, call.learnable_correction, _blocks=blocks)
    return list(dict.fromkeys(_specialised(kernel, arguments) for kernel, arguments in launches))


@contextmanager
def _recorded() -> Iterator[list[tuple[Any, dict[str, Any]]]]:
    launches: list[tuple[Any, dict[str, Any]]] = []
    launch = triton_scan._launch
    triton_scan._launch = lambda kernel, grid, arguments: launches.append((kernel, arguments))
    try:
        yield launches
    finally:
        triton_scan._launch = launch


def _specialised(kernel: Any, arguments: dict[str, Any]) -> Variant:
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
    step = _step(kernel, arguments)
    return Variant(step, kernel.__name__, tuple(signature), tuple(constants), tuple(divisible), threads)


def _step(kernel: Any, arguments: dict[str, Any]) -> str:
    if kernel is combine_kernel:
        return "combine chunks"
    if kernel is not forward_kernel:
        return "backward"
    if arguments["OUTPUT"]:
        return "forward"
    return ("adjoint " if arguments["ADJOINT"] else "") + ("chunk sweep" if arguments["ENDS"] else "carries sweep")
