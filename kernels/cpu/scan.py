"""The `cpu` backend: hands the tensors of a scan to the C++ kernel in `cpu/`, which reads them in place.

Axes: B batch, H x W grid, L = H * W, E channels, N dstates, K scan directions, r rank of the time step.
"""

import ctypes
import threading

import torch

from geomano_hpc.errors import BackendError
from geomano_hpc.kernels.cpu.extension import load_library
from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings

LANES = 16  # channels that the kernel computes together
TILE = 32  # positions of a tile in 1D
TILE_EDGE_SHARE = 0.25  # of the states of a grid that lie on the edges of its tiles in 2D
BUNDLE = 16  # channel blocks that walk the sequence together in the backward: what they keep fits a level-2 cache
_ENTRIES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}


class _Activation(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("batch_stride", ctypes.c_int64),
        ("position_stride", ctypes.c_int64),
        ("direction_stride", ctypes.c_int64),
    ]


class _Problem(ctypes.Structure):
    """Mirrors `Problem` of cpu/problem.h field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("batch", "height", "width", "channels", "dstate", "rank", "directions")),
        ("orders", ctypes.c_int64 * 8),
        ("down", ctypes.c_double * 8),
        ("closed", ctypes.c_int64 * 8),
        *((name, ctypes.c_double * 8) for name in ("own_down", "own_along", "hold")),
        *((name, ctypes.c_int64) for name in ("two_d", "state_form", "interval")),
        *((name, ctypes.c_int64) for name in ("groups", "slots", "bundle", "needs_R", "threads")),
        *((name, _Activation) for name in ("x", "dt", "B", "C", "dy")),
        *((name, ctypes.c_void_p) for name in ("A", "D", "R", "dt_bias", "dt_weight", "y", "carries")),
        *((name, ctypes.c_void_p) for name in ("dx", "ddt", "dB", "dC")),
        *((name, ctypes.c_void_p) for name in ("dA", "dR", "dD", "ddt_bias", "ddt_weight", "partial")),
    ]


def carries_size(inputs: ScanInputs, settings: ScanSettings) -> int:
    """1D keeps one hidden state per interval; 2D sweeps again, and keeps only those with which closed lines begin."""
    batch, height, width, channels = inputs.x.shape
    K, dstate = inputs.A.shape[0], inputs.A.shape[-1]
    blocks = -(-channels // LANES)
    if settings.kind == "2d":
        along_H, along_W = settings.periodic
        lines = width * along_H + height * along_W
        return batch * blocks * K * lines * _padded(dstate) * LANES
    interval = _interval(K, dstate, inputs.x.element_size())
    intervals = (height * width + interval - 1) // interval
    return batch * blocks * K * intervals * dstate * LANES


def forward(inputs: ScanInputs, settings: ScanSettings, keep_carries: bool) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = _readable(inputs)
    y = torch.empty_like(inputs.x, memory_format=torch.contiguous_format)
    needed = keep_carries or any(settings.periodic)  # a ring's are found before the scan that begins with them
    carries = inputs.A.new_empty(carries_size(inputs, settings) if needed else 0)
    problem = _problem(inputs, settings)
    problem.y = y.data_ptr()
    problem.carries = carries.data_ptr() or None
    _call("forward", inputs.x.dtype, problem)
    return y, carries if keep_carries else inputs.A.new_empty(0)


def backward(
    dy: torch.Tensor, inputs: ScanInputs, settings: ScanSettings, carries: torch.Tensor, needs_R: bool
) -> ScanInputs:
    inputs = _readable(inputs)
    dy = _one_stride(dy)
    batch, K = inputs.x.shape[0], len(settings.orders)
    grads = ScanInputs._make(None if t is None else torch.empty(t.shape, dtype=t.dtype) for t in inputs)
    # A sum over positions per batch element; a fixed-order sum over the batch follows.
    sums = {
        name: tensor.new_empty((batch, *tensor.shape))
        for name, tensor in inputs._asdict().items()
        if name in ("A", "D", "R", "dt_bias", "dt_weight") and tensor is not None and (name != "R" or needs_R)
    }
    problem = _problem(inputs, settings)
    problem.dy = _activation(dy)
    problem.needs_R = needs_R and inputs.R is not None
    problem.groups = _groups(inputs)
    problem.bundle = _bundle(inputs, settings.kind, problem.groups)
    problem.slots = _slots(problem)
    if problem.slots > 1 or problem.bundle < -(-problem.channels // LANES):
        row = 2 * _padded(problem.dstate) + problem.rank
        partial = _workspace(batch * problem.slots * problem.height * problem.width * K * row, inputs.A.dtype)
        problem.partial = partial.data_ptr()
    problem.carries = carries.data_ptr() or None
    for name in ("x", "dt", "B", "C"):
        setattr(problem, f"d{name}", getattr(grads, name).data_ptr())
    for name, tensor in sums.items():
        setattr(problem, f"d{name}", tensor.data_ptr())
    _call("backward", inputs.x.dtype, problem)
    return grads._replace(**{"R": None, **{name: tensor.sum(0) for name, tensor in sums.items()}})


_kept = threading.local()


def _workspace(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory for partial sums, kept from call to call: new pages would cost as much as the sums."""
    before: torch.Tensor | None = getattr(_kept, "memory", None)
    if before is None or before.numel() < size or before.dtype != dtype:
        _kept.memory = None  # free it before asking for more
        _kept.memory = torch.empty(size, dtype=dtype)
    kept: torch.Tensor = _kept.memory
    return kept


def _padded(dstate: int) -> int:
    """Dstates are taken four at a time."""
    return -(-dstate // 4) * 4


def _interval(K: int, dstate: int, element_bytes: int) -> int:
    """Positions between two kept states, so many that they take at most twice the memory of x, whatever K and N are."""
    return max(1, (_wider(element_bytes) * K * dstate // 2 + TILE - 1) // TILE) * TILE


def _wider(element_bytes: int) -> int:
    """States and sums are float32 where the activations are bfloat16."""
    return 2 if element_bytes == 2 else 1


def _groups(inputs: ScanInputs) -> int:
    """Into how many groups the channel blocks of a batch element are divided.

    Each group sums its share of dB, dC and ddt; the groups are then added in pairs, pairs of pairs and so on. From the
    shapes alone, never from the threads: the result is the same bits for any number of them. Together the sums take at
    most 95 % of the memory of x, y, dt, B, C and their gradients, if each group is a task.
    """
    blocks = -(-inputs.x.shape[-1] // LANES)
    summed = inputs.B.numel() + inputs.C.numel() + (0 if inputs.dt_weight is None else inputs.dt.numel())
    activations = 3 * inputs.x.numel() + 2 * (inputs.dt.numel() + inputs.B.numel() + inputs.C.numel())
    most = max(1, min(blocks, 19 * activations // (20 * summed * _wider(inputs.x.element_size()))))
    return 1 << (most.bit_length() - 1)  # a power of two: any aligned part of them may be added first


def _bundle(inputs: ScanInputs, kind: str, groups: int) -> int:
    """Channel blocks that walk the grid together in the backward; from the shapes alone, like the groups.

    More of them share what comes to the cache for a tile. In 2D each keeps the edges of its tiles for a direction, in
    all groups at once at most four times the memory of x.
    """
    blocks = -(-inputs.x.shape[-1] // LANES)
    if kind == "1d":
        return min(blocks, BUNDLE)
    edges = TILE_EDGE_SHARE * inputs.A.shape[-1] * groups * _wider(inputs.x.element_size())
    return max(1, min(-(-blocks // groups), int(4 * blocks / edges)))


def _slots(problem: _Problem) -> int:
    """Tasks of a batch element: as few as keep the threads busy, since each writes sums for the others to add.

    Several groups share one only where their blocks walk together, so that their sums are added in the same order.
    """
    blocks, slots = -(-problem.channels // LANES), 1
    while slots < problem.groups and (slots * problem.batch < problem.threads or -(-blocks // slots) > problem.bundle):
        slots *= 2
    return slots


def _problem(inputs: ScanInputs, settings: ScanSettings) -> _Problem:
    problem = _Problem()
    problem.batch, problem.height, problem.width, problem.channels = inputs.x.shape
    problem.dstate = inputs.A.shape[-1]
    problem.rank = 0 if inputs.dt_weight is None else inputs.dt_weight.shape[-1]
    problem.directions = len(settings.orders)
    for k, order in enumerate(settings.orders):
        problem.orders[k] = order.code
        problem.down[k] = settings.stretch_down(order)
        columns_closed, rows_closed = settings.closed(order)
        problem.closed[k] = columns_closed + 2 * rows_closed
        problem.own_down[k], problem.own_along[k] = settings.own_of(order)
        problem.hold[k] = settings.hold_of(order)
    problem.two_d = settings.kind == "2d"
    problem.state_form = settings.correction == "state"
    problem.interval = _interval(problem.directions, problem.dstate, inputs.x.element_size())
    problem.threads = torch.get_num_threads()
    for name in ("x", "dt", "B", "C"):
        setattr(problem, name, _activation(getattr(inputs, name)))
    for name in ("A", "D", "R", "dt_bias", "dt_weight"):
        tensor = getattr(inputs, name)
        setattr(problem, name, None if tensor is None else tensor.data_ptr())
    return problem


def _activation(tensor: torch.Tensor) -> _Activation:
    return _Activation(tensor.data_ptr(), tensor.stride(0), _position_stride(tensor), tensor.stride(3))


def _position_stride(tensor: torch.Tensor) -> int:
    """Torch leaves the stride of an axis of length 1 open, whatever it calls contiguous."""
    return tensor.stride(2) if tensor.shape[2] > 1 else tensor.stride(1)


def _readable(inputs: ScanInputs) -> ScanInputs:
    activations = ("x", "dt", "B", "C")
    return ScanInputs._make(
        None if t is None else _one_stride(t) if name in activations else t.contiguous()
        for name, t in inputs._asdict().items()
    )


def _one_stride(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if its values lie side by side and its positions at one distance, as in a split projection."""
    height, width = tensor.shape[1:3]
    side_by_side = tensor.stride(-1) == 1 or tensor.shape[-1] == 1
    one_distance = height == 1 or width == 1 or tensor.stride(1) == width * tensor.stride(2)
    return tensor if side_by_side and one_distance else tensor.clone(memory_format=torch.contiguous_format)


def _call(direction: str, dtype: torch.dtype, problem: _Problem) -> None:
    if dtype not in _ENTRIES:
        raise BackendError(
            f"scan backend 'cpu' computes {', '.join(_ENTRIES.values())}, not {dtype}; convert x, dt, B and C"
        )
    library = load_library()
    assert library.geo_scan_problem_bytes() == ctypes.sizeof(_Problem), "scan.py and source/problem.h disagree"
    getattr(library, f"geo_scan_{direction}_{_ENTRIES[dtype]}")(ctypes.byref(problem))


def compute_floor(kind: str, direction: str, updates: int) -> None:
    """As many vectorised exponentials and multiply-adds as a scan of so many state updates needs, in the cache."""
    per_thread = -(-updates // (LANES * torch.get_num_threads()))
    numbers = (kind == "2d", direction == "backward", per_thread, torch.get_num_threads())
    load_library().geo_scan_floor(*(ctypes.c_int64(number) for number in numbers))
