"""What a call of the Triton backend launches, as Triton's launcher would specialise it.

The launches are recorded from the backend itself, run on meta tensors: kernels with their constants, types, alignment,
grid and integers, and torch's own kernels (sums, copies, casts) beside them. TRITON_INTERPRET must not be set: Triton
reads it when a kernel is defined.

    launches_of(call)   what forward and backward of a described call launch
    recorded()          what any code launches: `with recorded() as found: ...` on meta tensors
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from geomano_hpc.kernels.audit.calls import Call
from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
from geomano_hpc.kernels.orders import order_set
from geomano_hpc.kernels.triton import launching

_TYPES = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip
# Of torch, what only makes room or looks at a tensor in another way, besides views.
_FREE = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_reshape_alias", "set_", "detach")
_NEAR = 2**31 - 1  # bytes of a tensor to which AMD's kernels take 32-bit offsets


@dataclass(frozen=True)
class Variant:
    """One kernel as the launcher would specialise it: equal variants are compiled once."""

    module: str
    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    divisible: tuple[str, ...]  # arguments that are known to be divisible by 16
    near: tuple[str, ...]  # tensors of less than 2 GB
    options: tuple[tuple[str, Any], ...]  # num_warps, num_stages, enable_fp_fusion

    @property
    def warps(self) -> int:
        return int(dict(self.options).get("num_warps", 4))


@dataclass(frozen=True)
class Launch:
    """`integers` by the position among the arguments that are no constants, as the compiled kernel takes them."""

    part: str  # "forward" or "backward"
    variant: Variant
    grid: tuple[int, ...]
    integers: Mapping[int, int]
    names: Mapping[str, int] = field(default_factory=dict)  # the integers by name

    @property
    def programs(self) -> int:
        sizes = [*self.grid, 1, 1]
        return sizes[0] * sizes[1] * sizes[2]

    @property
    def step(self) -> str:
        """The kernel, with the modes that tell its roles apart."""
        modes = [name.lower() for name, value in self.variant.constants if value is True]
        return " ".join([self.variant.kernel, *modes])


@dataclass
class Recorded:
    launches: list[Launch] = field(default_factory=list)
    torch_kernels: list[tuple[str, str]] = field(default_factory=list)  # part and name of the operator

    def of(self, part: str) -> "Recorded":
        return Recorded(
            [launch for launch in self.launches if launch.part == part],
            [kernel for kernel in self.torch_kernels if kernel[0] == part],
        )

    @property
    def count(self) -> int:
        """Launches, torch's own included."""
        return len(self.launches) + len(self.torch_kernels)

    @property
    def variants(self) -> list[Variant]:
        """Each once."""
        return list(dict.fromkeys(launch.variant for launch in self.launches))


def starts_kernel(operator: Any) -> bool:
    """Whether an operator of torch does more than to make room or to look at a tensor in another way."""
    view = any(r.alias_info is not None and not r.alias_info.is_write for r in operator._schema.returns)
    return not view and operator.overloadpacket.__name__ not in _FREE


class _TorchKernels(TorchDispatchMode):
    """Operators of torch that start a kernel on a GPU."""

    def __init__(self, found: Recorded, part: list[str]) -> None:
        super().__init__()
        self.found, self.part = found, part

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if starts_kernel(operator):
            self.found.torch_kernels.append((self.part[0], operator.overloadpacket.__name__))
        return operator(*args, **(kwargs or {}))


@contextmanager
def recorded(part: list[str] | None = None) -> Iterator[Recorded]:
    """Record instead of launching. `part` is a list of one name, which the caller may change on the way."""
    found, part = Recorded(), part or ["forward"]

    def listen(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        found.launches.append(specialised(part[0], kernel, grid, arguments, constants))

    launch = launching.launch
    launching.launch = listen
    try:
        with _TorchKernels(found, part):
            yield found
    finally:
        launching.launch = launch


def launches_of(call: Call) -> Recorded:
    """What forward and backward of a call launch."""
    from geomano_hpc.kernels.triton import scan as triton_scan

    inputs, settings = meta_inputs(call)
    part = ["forward"]
    with nominal_gpu(call), recorded(part) as found:
        _, carries = triton_scan.forward(inputs, settings, True)
        part[0] = "backward"
        triton_scan.backward(torch.empty_like(inputs.x), inputs, settings, carries, call.learnable_correction)
    return found


@contextmanager
def nominal_gpu(call: Call) -> Iterator[None]:
    """The backend plans a call on meta tensors for the call's GPU: so many multiprocessors, and lanes of a warp."""
    from geomano_hpc.kernels.triton import plan

    gpu = plan.gpu_of
    plan.gpu_of = lambda tensor: plan.GPU(call.processors, call.lanes, call.amd)
    try:
        yield
    finally:
        plan.gpu_of = gpu


def meta_inputs(call: Call) -> tuple[ScanInputs, ScanSettings]:
    dtype: torch.dtype = getattr(torch, call.dtype)
    form = "equation" if call.correction == "none" else call.correction
    periodic = (bool(call.rings & 1), bool(call.rings & 2))
    settings = ScanSettings(order_set(call.orders), call.kind, form, call.stretch, periodic, call.own, call.hold)
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
    return inputs, settings


def specialised(
    part: str, kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: Mapping[str, Any]
) -> Launch:
    """A launch as Triton's launcher sees it: what it makes constants of (1, None), and what is divisible by 16."""
    signature: list[tuple[str, str]] = []
    fixed: list[tuple[str, Any]] = []
    divisible, near, integers, names = [], [], {}, {}
    position, given = 0, iter(arguments)
    for parameter in kernel.params:
        name = parameter.name
        if parameter.is_constexpr:
            if name not in constants and not parameter.has_default:
                raise TypeError(f"{kernel.fn.__name__} is launched without its constant {name}")
            value = constants.get(name, parameter.default)
            signature.append((name, "constexpr"))
            fixed.append((name, value))
            continue
        value = next(given)
        aligns = not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment)
        if value is None or (type(value) is int and value == 1 and not parameter.do_not_specialize):
            signature.append((name, "constexpr"))
            fixed.append((name, value))
            continue
        if isinstance(value, torch.Tensor):
            signature.append((name, f"*{_TYPES[value.dtype]}"))
            if aligns and value.storage_offset() * value.element_size() % 16 == 0:
                divisible.append(name)
            if not parameter.do_not_specialize and value.untyped_storage().size() <= _NEAR:
                near.append(name)
        elif isinstance(value, float):
            signature.append((name, "fp32"))
        else:
            signature.append((name, "i32" if abs(value) < 2**31 else "i64"))
            integers[position] = names[name] = int(value)
            if aligns and value % 16 == 0:
                divisible.append(name)
        position += 1
    options = {name: value for name, value in constants.items() if name not in {p.name for p in kernel.params}}
    function = kernel.fn
    variant = Variant(
        function.__module__, function.__name__, tuple(signature), tuple(fixed), tuple(divisible), tuple(near),
        tuple(sorted(options.items())),
    )  # fmt: skip
    return Launch(part, variant, tuple(grid), integers, names)
