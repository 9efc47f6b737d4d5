"""Global-memory traffic of the Triton kernels, counted by tensor while the interpreter runs them.

Counted is every address of a load or store that is not masked out, once for all lanes that ask for it. Bytes that a GPU
would serve from a cache count as well: this is the algorithm's traffic. Of a launch with many programs some are run,
chosen at random with a fixed seed, and what they move is scaled: programs differ at the edges of the grid only. The
minimum is

    forward   x, dt, B, C read once per direction; y written once; A, D, R, bias and weight read once per sample
    backward  x, dt, B, C, dy read once per direction; dx written once; the gradients of dt, B, C and of the parameters
              written once; and for 2d, whose carries are recomputed, x, dt and B read once more: a gradient needs the
              states, which come from one end of the grid, and the adjoint states, which come from the other, and
              neither is stored
    chunks    a chunk of the traversal starts from a state that depends on all inputs before it, and it does not stay
              on chip until that is known. So where chunks run at the same time, what they start from takes one more
              read: forward x, dt and B, backward dy, dt and C

The carries between tiles and chunks, what a program writes for itself, and the partial sums that another launch adds up
are listed apart.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from triton.runtime import interpreter

from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
from geomano_hpc.kernels.triton import launching

# Tensors by the names that the kernels give them.
CARRIES = ("kept", "ends", "span", "along", "across", "hor", "ver", "back_hor", "back_ver", "closing")
SCRATCH = ("scratch", "handed")  # what a program hands to itself: the caches hold it
PARTIALS = ("y_part", "dx_part", "over_channels", "of_parameters")


class Bytes(NamedTuple):
    loaded: float
    stored: float


class LaunchTraffic(NamedTuple):
    kernel: str
    by_tensor: dict[str, Bytes]
    sizes: dict[str, int]  # bytes of the tensors

    @property
    def from_memory(self) -> float:
        """With a cache that holds everything: of each tensor no more than its size, once each way. What a program wrote
        for itself is read from the cache, and leaves it once."""
        found = 0.0
        for name, count in self.by_tensor.items():
            size = self.sizes.get(name, 0)
            found += min(count.stored, size) + (0.0 if kind_of(name) == "scratch" else min(count.loaded, size))
        return found

    @property
    def by_kind(self) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for name, count in self.by_tensor.items():
            found[kind_of(name)] += sum(count)
        return dict(found)


def kind_of(name: str) -> str:
    """Whether a tensor is a carry, a scratch, a partial sum, or one that the call takes or gives."""
    kinds = {"carries": CARRIES, "scratch": SCRATCH, "partials": PARTIALS}
    return next((kind for kind, names in kinds.items() if name in names), "tensors")


@contextmanager
def counting(programs: int = 0, seed: int = 0) -> Iterator[list[LaunchTraffic]]:
    """Count while kernels run: a row for every launch. `programs`: how many of a launch run, 0 for all; results are
    then worthless, but no address depends on them. Scans are skipped, for the same reason."""
    found: list[LaunchTraffic] = []
    traffic: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    ranges: list[tuple[int, int, str]] = []
    builder, launch = interpreter.InterpreterBuilder, launching.launch
    load, store, scan = builder.create_masked_load, builder.create_masked_store, interpreter.ScanOps.apply_impl
    scale = [1.0]

    def count(pointers: Any, mask: Any, direction: int) -> None:
        addresses = pointers.data[mask.data.astype(bool) if mask.data.shape == pointers.data.shape else ...].ravel()
        if addresses.size:
            first = int(addresses[0])
            name = next((name for start, end, name in ranges if start <= first < end), "outside of every tensor")
            element = pointers.get_element_ty().primitive_bitwidth // 8
            traffic[name][direction] += scale[0] * np.unique(addresses).size * element

    def counted_load(self: Any, pointers: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        count(pointers, mask, 0)
        return load(self, pointers, mask, *rest, **options)

    def counted_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        count(pointers, mask, 1)
        return store(self, pointers, value, mask, *rest, **options)

    def named_launch(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        ranges.clear()
        traffic.clear()
        names = [name for name in kernel.arg_names if name not in constants]
        for name, tensor in zip(names, arguments, strict=True):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                ranges.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes(), name))
        # Programs of sums differ from each other, and are short.
        several = programs * (40 if kernel.fn.__name__.startswith("sum") else 1)
        with _some_programs(grid, several, seed) as (fewer, scale[0]):
            launch(kernel, fewer, arguments, constants)
        by_tensor = {name: Bytes(*count) for name, count in traffic.items()}
        sizes = {name: end - start for start, end, name in reversed(ranges)}
        found.append(LaunchTraffic(kernel.fn.__name__, by_tensor, sizes))

    def no_scan(self: Any, inputs: Any) -> Any:
        return list(inputs)

    patches: list[tuple[Any, str, Callable[..., Any], Callable[..., Any]]] = [
        (builder, "create_masked_load", load, counted_load),
        (builder, "create_masked_store", store, counted_store),
        (interpreter.ScanOps, "apply_impl", scan, no_scan),
        (launching, "launch", launch, named_launch),
    ]
    for owner, name, _, patched in patches:
        setattr(owner, name, patched)
    try:
        with patched_once():
            yield found
    finally:
        for owner, name, original, _ in patches:
            setattr(owner, name, original)


@contextmanager
def _some_programs(grid: tuple[int, ...], programs: int, seed: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """A smaller grid that stands for some programs of this one, and how many each of them stands for."""
    sizes = (*grid, 1, 1)[:3]
    total = int(np.prod(sizes))
    if not programs or total <= programs:
        yield grid, 1.0
        return
    chosen = np.random.default_rng(seed).permutation(total)[:programs]
    builder = interpreter.interpreter_builder
    dim, idx = builder.set_grid_dim, builder.set_grid_idx

    def set_idx(x: int, y: int, z: int) -> None:
        number = int(chosen[x])
        idx(number % sizes[0], number // sizes[0] % sizes[1], number // (sizes[0] * sizes[1]))

    builder.set_grid_dim, builder.set_grid_idx = lambda *_: dim(*sizes), set_idx
    try:
        yield (programs,), total / programs
    finally:
        del builder.set_grid_dim, builder.set_grid_idx


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


def minimum_forward(inputs: ScanInputs, chunked: bool = False) -> int:
    x, K, batch = _bytes(inputs.x), inputs.A.shape[0], inputs.x.shape[0]
    again = K * x + _bytes(inputs.dt) + _bytes(inputs.B) if chunked else 0
    return again + K * x + _activations(inputs) + x + batch * _parameters(inputs)


def minimum_backward(inputs: ScanInputs, settings: ScanSettings, chunked: bool = False, needs_R: bool = True) -> int:
    x, K, batch = _bytes(inputs.x), inputs.A.shape[0], inputs.x.shape[0]
    read = 2 * K * x + _activations(inputs)
    if settings.kind == "2d":
        read += K * x + _bytes(inputs.dt) + _bytes(inputs.B)
    if chunked:
        read += K * x + _bytes(inputs.dt) + _bytes(inputs.C)
    gradients = x + _activations(inputs) + _parameters(inputs if needs_R else inputs._replace(R=None))
    return read + gradients + batch * _parameters(inputs)


def _activations(inputs: ScanInputs) -> int:
    return _bytes(inputs.dt) + _bytes(inputs.B) + _bytes(inputs.C)


def _parameters(inputs: ScanInputs) -> int:
    parameters = (inputs.A, inputs.D, inputs.R, inputs.dt_bias, inputs.dt_weight)
    return sum(_bytes(tensor) for tensor in parameters if tensor is not None)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
