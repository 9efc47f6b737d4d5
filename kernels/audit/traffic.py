"""Global-memory traffic of the Triton kernels, counted by tensor while the interpreter runs them.

Counted is every lane of a load or store that is not masked out, so bytes that a GPU would serve from a cache count as
well: this is the algorithm's traffic. The minimum, per direction, is

    forward   x, dt, B, C read once; y written once and, after the first direction, read once; A, D, R, bias and
              weight read once per sample
    backward  x, dt, B, C, dy read once; dx written once and, after the first direction, read once; the gradients of
              dt, B, C written once, those of the parameters once per sample; and for 2d, whose carries are
              recomputed, x, dt and B read once more: a gradient needs the states, which come from one end of the
              grid, and the adjoint states, which come from the other, and neither is stored
    chunks    a chunk of the traversal starts from a state that depends on all inputs before it, and it does not stay
              on chip until that is known. So where chunks run at the same time, what they start from takes one more
              read: forward x, dt and B, backward dy, dt and C

The carries between tiles and chunks are listed apart. Tiles that hang over the edge of the grid are masked there, so
they only raise the traffic of what is counted per tile (carries, parameters, their gradients).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from triton.runtime import interpreter

from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
from geomano_hpc.kernels.triton import scan as triton_scan
from geomano_hpc.kernels.triton.blocks import Blocks
from geomano_hpc.kernels.triton.forward import forward_kernel

CARRIES = ("kept", "P_hor", "P_ver", "Q_hor", "Q_ver", "entries", "ends", "span")
# The adjoint sweep takes dy for x and C for B.
_ADJOINT = {"x": "dy", "B": "C"}


class Bytes(NamedTuple):
    loaded: int
    stored: int


Traffic = dict[str, Bytes]


def total(traffic: Traffic, carries: bool = False) -> int:
    """Bytes loaded and stored, of the carries or of everything else."""
    return sum(sum(count) for name, count in traffic.items() if (name in CARRIES) == carries)


def count_forward(inputs: ScanInputs, settings: ScanSettings, blocks: Blocks, keep_carries: bool = True) -> Traffic:
    with _counting() as traffic:
        triton_scan.forward(inputs, settings, keep_carries, _blocks=blocks)
    return {name: Bytes(*count) for name, count in traffic.items()}


def count_backward(inputs: ScanInputs, settings: ScanSettings, blocks: Blocks, needs_R: bool = True) -> Traffic:
    carries = torch.zeros(triton_scan.carries_size(inputs, settings, blocks))
    with _counting() as traffic:
        triton_scan.backward(torch.ones_like(inputs.x), inputs, settings, carries, needs_R, _blocks=blocks)
    return {name: Bytes(*count) for name, count in traffic.items()}


def minimum_forward(inputs: ScanInputs, chunked: bool = False) -> int:
    x, K, batch = _bytes(inputs.x), inputs.A.shape[0], inputs.x.shape[0]
    y = 4 * inputs.x.numel()
    again = K * x + _bytes(inputs.dt) + _bytes(inputs.B) if chunked else 0
    return again + K * x + _activations(inputs) + (2 * K - 1) * y + batch * _parameters(inputs)


def minimum_backward(inputs: ScanInputs, settings: ScanSettings, chunked: bool = False, needs_R: bool = True) -> int:
    x, K, batch = _bytes(inputs.x), inputs.A.shape[0], inputs.x.shape[0]
    dx = 4 * inputs.x.numel()
    # Sums over channels leave in float32: of B, C and a low-rank dt.
    gradients = 4 * (inputs.B.numel() + inputs.C.numel())
    gradients += _bytes(inputs.dt) if inputs.dt_weight is None else 4 * inputs.dt.numel()
    read = 2 * K * x + _activations(inputs)
    if settings.kind == "2d":
        read += K * x + _bytes(inputs.dt) + _bytes(inputs.B)
    if chunked:
        read += K * x + _bytes(inputs.dt) + _bytes(inputs.C)
    parameters = _parameters(inputs) + _parameters(inputs if needs_R else inputs._replace(R=None))
    return read + (2 * K - 1) * dx + gradients + batch * parameters


def _activations(inputs: ScanInputs) -> int:
    return _bytes(inputs.dt) + _bytes(inputs.B) + _bytes(inputs.C)


def _parameters(inputs: ScanInputs) -> int:
    parameters = (inputs.A, inputs.D, inputs.R, inputs.dt_bias, inputs.dt_weight)
    return sum(_bytes(tensor) for tensor in parameters if tensor is not None)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@contextmanager
def patched_once() -> Iterator[None]:
    """The interpreter patches Triton's language at every call of a function; once per launch and module is enough, and
    several times faster."""
    patch, call = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[int] = set()

    def patch_once(function: Any) -> Any:
        if id(function.__globals__) in patched:
            return None
        patched.add(id(function.__globals__))
        return patch(function)

    def launch(self: Any, *arguments: Any, **options: Any) -> Any:
        patched.clear()
        return call(self, *arguments, **options)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, launch
    try:
        yield
    finally:
        interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch, call


@contextmanager
def _counting() -> Iterator[dict[str, list[int]]]:
    """Count while kernels run. Results are worthless: scans are skipped, since no address depends on them."""
    traffic: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    ranges: list[tuple[int, int, str]] = []
    builder, launch = interpreter.InterpreterBuilder, triton_scan._launch
    load, store, scan = builder.create_masked_load, builder.create_masked_store, interpreter.ScanOps.apply_impl

    def count(pointers: Any, mask: Any, direction: int) -> None:
        addresses = pointers.data[mask.data.astype(bool) if mask.data.shape == pointers.data.shape else ...].ravel()
        if addresses.size:
            name = next(name for start, end, name in ranges if start <= int(addresses[0]) < end)
            traffic[name][direction] += addresses.size * pointers.get_element_ty().primitive_bitwidth // 8

    def counted_load(self: Any, pointers: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        count(pointers, mask, 0)
        return load(self, pointers, mask, *rest, **options)

    def counted_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        count(pointers, mask, 1)
        return store(self, pointers, value, mask, *rest, **options)

    def named_launch(kernel: Any, grid: tuple[int], arguments: dict[str, Any]) -> None:
        ranges.clear()
        # A pointer that is not followed may point at another tensor: y, dx, A and P_hor own what they point at.
        owners = [name for name in ("y", "dx", "A", "P_hor", "kept") if name in arguments]
        if kernel is forward_kernel and not arguments["OUTPUT"]:
            owners = ["P_hor", "A"]
        renamed = _ADJOINT if arguments.get("ADJOINT") else {}
        for name in [*owners, *(name for name in arguments if name not in owners)]:
            if isinstance(arguments[name], torch.Tensor):
                storage = arguments[name].untyped_storage()
                ranges.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes(), renamed.get(name, name)))
        launch(kernel, grid, arguments)

    def no_scan(self: Any, inputs: Any) -> Any:
        return list(inputs)

    patches: list[tuple[Any, str, Callable[..., Any], Callable[..., Any]]] = [
        (builder, "create_masked_load", load, counted_load),
        (builder, "create_masked_store", store, counted_store),
        (interpreter.ScanOps, "apply_impl", scan, no_scan),
        (triton_scan, "_launch", launch, named_launch),
    ]
    for owner, name, _, patched in patches:
        setattr(owner, name, patched)
    try:
        with patched_once():
            yield traffic
    finally:
        for owner, name, original, _ in patches:
            setattr(owner, name, original)
