"""What the launches of a scan are, made once per shape: grids, integers, constants and the sizes of buffers.

A call then only makes its buffers and hands them to the kernels: Python's share of a call is small.
Axes: B batch, H x W grid, E channels, N dstates, K scan directions, r rank of the time step.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch

from geomano_hpc.errors import BackendError
from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
from geomano_hpc.kernels.triton import sums
from geomano_hpc.kernels.triton.blocks import (
    NOMINAL_MULTIPROCESSORS,
    SCHEDULERS,
    Blocks,
    Wave,
    blocks_for,
    chunk_count,
    wave,
)
from geomano_hpc.kernels.triton.grid_backward import scratch_size
from geomano_hpc.kernels.triton.launching import Fixed

_COMPILER = {"num_stages": 1, "enable_fp_fusion": True}
_LARGEST = 2**31 - 1  # offsets inside a sample are 32 bit
_MOST_PROGRAMS = 65535  # along the third axis of a launch
CARRIES_BYTES = 2**30  # of the edges that a 2d backward makes at a time: larger batches are taken in slices


class Launch(NamedTuple):
    """One launch of a kernel, apart from its tensors."""

    grid: tuple[int, int, int]
    integers: tuple[int | float | None, ...]
    constants: Fixed


class Shape(NamedTuple):
    """Everything that launches depend on."""

    kind: str
    correction: int  # 0 none, 1 equation, 2 state
    orders: tuple[int, ...]  # their codes
    batch: int
    height: int
    width: int
    channels: int
    dstate: int
    rank: int  # 0: a full dt
    dt_row: int  # elements from a point of dt to the next, and from a direction to the next
    dt_direction: int
    B_row: int
    B_direction: int
    dtype: torch.dtype  # of the activations
    multiprocessors: int
    blocks: Blocks
    stretch: float
    rings: int  # 1 for an axis H that is periodic, and 2 for an axis W
    own: tuple[float, float]  # along H, along W
    hold: tuple[float, float] | None

    @property
    def packed_orders(self) -> int:
        return sum(code << (3 * k) for k, code in enumerate(self.orders))

    @property
    def points(self) -> int:
        return self.height * self.width

    @property
    def longest(self) -> int:
        return max(self.height, self.width)

    @property
    def samples(self) -> int:
        """Of all directions."""
        return len(self.orders) * self.batch

    @property
    def counts_more(self) -> bool:
        """Whether points count more for themselves."""
        return self.own != (0.0, 0.0)

    @property
    def geometry(self) -> tuple[float | int | None, ...]:
        """What the kernels of a grid take of it; None is an argument that is not there."""
        return self.stretch if self.stretch != 1.0 else None, self.rings or None, *self.own_and_hold

    @property
    def own_and_hold(self) -> tuple[float | None, ...]:
        own, hold = self.own if self.counts_more else (None, None), self.hold if self.holds == 2 else None
        return *own, *(hold or (None, None))

    @property
    def holds(self) -> int:
        """0: Bbar is dt B, 1: an exact hold whose exponents are those of Abar, 2: one that has its own."""
        return 0 if self.hold is None else 1 if self.hold == (1.0, 1.0) else 2

    @property
    def modes(self) -> dict[str, Any]:
        """Constants of the kernels that know both."""
        return {"OWN": self.counts_more, "HOLD": self.holds}

    @property
    def steps(self) -> tuple[int, int, int, int]:
        return self.dt_row, self.dt_direction, self.B_row, self.B_direction

    def constants(self, warps: int, **more: Any) -> Fixed:
        return Fixed(N=self.dstate, num_warps=warps, **_COMPILER, **more)


class SequenceForward(NamedTuple):
    """The sweep, which one chunk does not need, the main pass, and the elements of their buffers."""

    chunks: int
    sweep: Launch
    main: Launch
    kept: int
    ends: int
    span: int
    scratch: int


class SequenceBackward(NamedTuple):
    chunks: int
    sweep: Launch
    main: Launch
    sums: tuple[Launch, Launch]
    ends: int
    span: int
    sweep_scratch: int
    scratch: int
    over_channels: int
    of_parameters: int


class GridForward(NamedTuple):
    rings: Launch
    main: Launch
    handed: int
    closing: int  # 0 without rings


class GridBackward(NamedTuple):
    state_rings: Launch
    states: Launch
    adjoint_rings: Launch
    adjoint: Launch
    main: Launch
    sums: tuple[Launch, Launch]
    hor: int
    ver: int
    back_hor: int
    handed: int
    closing: int
    scratch: int
    over_channels: int
    of_parameters: int


@lru_cache(maxsize=512)
def sequence_forward(shape: Shape, keep: bool) -> SequenceForward:
    blocks, E, N = shape.blocks, shape.channels, shape.dstate
    widths = cdiv(E, blocks.lanes)
    tiles = cdiv(shape.points, blocks.forward_tile)
    chunks, per_chunk = _chunks(shape, widths * shape.samples, tiles, again=0.75)
    programs = shape.samples * chunks * widths
    sizes = (shape.batch, shape.height, shape.width, E, shape.packed_orders, *shape.steps)
    integers = (*sizes, chunks, per_chunk, 0, *shape.own_and_hold)
    main = _sequence_constants(shape, CORRECTION=shape.correction, SWEEP=0, KEEP=keep, **shape.modes)
    return SequenceForward(
        chunks,
        Launch((programs, 1, 1), integers, _sequence_sweep(shape, 1)),
        Launch((programs, 1, 1), integers, main),
        kept=kept_size(shape) if keep else 0,
        ends=shape.samples * chunks * N * E,
        span=shape.samples * chunks * E,
        scratch=programs * (3 * N + in_fours(shape.rank)) * blocks.lanes,
    )


@lru_cache(maxsize=512)
def sequence_backward(shape: Shape, needs_R: bool) -> SequenceBackward:
    blocks, E, N, rank = shape.blocks, shape.channels, shape.dstate, shape.rank
    width = blocks.backward_channels if blocks.lanes < E and not shape.holds else blocks.lanes
    wide = cdiv(E, width)
    tiles = cdiv(shape.points, blocks.forward_tile)
    chunks, per_chunk = _chunks(shape, wide * shape.samples, tiles, again=0.3)
    integers = (shape.batch, shape.height, shape.width, E, shape.packed_orders, *shape.steps, chunks, per_chunk, 0)
    main_integers = (shape.batch, len(shape.orders), *integers[1:], *shape.own_and_hold)
    sweep_programs = shape.samples * chunks * cdiv(E, blocks.lanes)
    programs = shape.samples * chunks * wide
    main = shape.constants(
        1, RANK=rank, CORRECTION=shape.correction, NEEDS_R=needs_R, P=blocks.backward_tile, BE=width,
        LANES=blocks.lanes, GROUP=blocks.ranks, **shape.modes,
    )  # fmt: skip
    slots = cdiv(shape.points, blocks.backward_tile) * blocks.backward_tile
    ranks = cdiv(rank, blocks.ranks) * blocks.ranks
    parts = shape.batch * chunks
    return SequenceBackward(
        chunks,
        Launch((sweep_programs, 1, 1), (*integers, None, None, None, None), _sequence_sweep(shape, 2)),
        Launch((programs, 1, 1), main_integers, main),
        _sums(shape, needs_R, wide, parts, slots, strip=0),
        ends=shape.samples * chunks * N * E,
        span=shape.samples * chunks * E,
        sweep_scratch=sweep_programs * (3 * N + in_fours(rank)) * blocks.lanes,
        scratch=programs * (5 * N + 2 * ranks) * width,
        over_channels=shape.samples * wide * (2 * N + rank) * slots,
        of_parameters=len(shape.orders) * parts * (2 * N + 2 + rank) * E,
    )


@lru_cache(maxsize=512)
def grid_forward(shape: Shape) -> GridForward:
    blocks = shape.blocks
    lanes = wave(shape.dstate, blocks.lanes)
    widths = cdiv(shape.channels, lanes.channels)
    programs = shape.samples * widths
    constants = _wave_constants(shape, lanes, CORRECTION=shape.correction, RINGS=shape.rings > 0, HOLD=shape.holds)
    row = lanes.groups * lanes.dstates * lanes.channels
    handed = programs * (shape.longest + 4 * blocks.strips) * row
    rings_handed, closing = _ring_sizes(shape, lanes, programs)
    return GridForward(
        _rings(shape, lanes, widths, False),
        Launch((programs, 1, 1), (*_wave_integers(shape, widths), *shape.geometry), constants),
        max(handed, rings_handed),
        closing,
    )


@lru_cache(maxsize=512)
def grid_backward(shape: Shape, needs_R: bool) -> GridBackward:
    blocks, E, N, rank = shape.blocks, shape.channels, shape.dstate, shape.rank
    strips, tiles = cdiv(shape.longest, blocks.strip_rows), cdiv(shape.longest, blocks.part)
    area = max(  # tiles of a grid, in the orientation that has more
        cdiv(one, blocks.strip_rows) * cdiv(other, blocks.part)
        for one, other in ((shape.height, shape.width), (shape.width, shape.height))
    )
    width = blocks.lanes
    wide = cdiv(E, width)
    if area * N * blocks.strip_rows * width > _LARGEST:
        raise BackendError(
            f"the triton scan's gradients take grids whose edges of tiles are up to 2^31 numbers; {shape.height} x "
            f"{shape.width} with {N} dstates has more: take a larger patch, or backend 'torch'"
        )
    programs = shape.samples * wide * strips
    segments = blocks.chunks or chunk_count(programs, tiles, SCHEDULERS * shape.multiprocessors, each=1.0)
    segment_tiles = max(cdiv(tiles, segments), cdiv(blocks.strips, blocks.part))
    segments = cdiv(tiles, segment_tiles)
    programs *= segments

    lanes = wave(N, blocks.lanes)
    widths = cdiv(E, lanes.channels)
    sweeps = shape.samples * widths
    integers = _wave_integers(shape, widths)
    # As in the sweeps of a sequence: here the assembler aims at 168.
    most = {"maxnreg": 192} if blocks.sweep_registers and shape.rings and (shape.counts_more or shape.holds) else {}
    sides = {"SIDE": blocks.part, "WIDE": width, "RINGS": shape.rings > 0}
    states = _wave_constants(shape, lanes, ADJOINT=False, HOLD=shape.holds, **sides, **most)
    adjoint = _wave_constants(shape, lanes, ADJOINT=True, HOLD=0, **sides)
    row = lanes.groups * lanes.dstates * lanes.channels
    every = segment_tiles * blocks.part
    main = shape.constants(
        1, LOW_RANK=rank > 0, CORRECTION=shape.correction, NEEDS_R=needs_R, STRIP=blocks.strip_rows, BE=width,
        STRETCHED=shape.stretch != 1.0, RINGS=shape.rings > 0, **shape.modes,
    )  # fmt: skip
    slots = area * blocks.strip_rows * blocks.part
    parts = shape.batch * strips * segments
    sizes = (len(shape.orders), shape.batch, shape.height, shape.width, E, rank, *shape.steps)
    edges = shape.samples * wide * N * width  # numbers along one position of an edge
    handed = sweeps * (shape.longest + (3 * blocks.part + 1) * blocks.strips) * row
    adjoint_handed = sweeps * (shape.longest + 4 * blocks.strips) * row
    rings_handed, closing = _ring_sizes(shape, lanes, sweeps)
    main_integers = (shape.packed_orders, *sizes, segments, segment_tiles, *shape.geometry)
    return GridBackward(
        _rings(shape, lanes, widths, False),
        Launch((sweeps, 1, 1), (*integers, blocks.part, tiles, *shape.geometry), states),
        _rings(shape, lanes, widths, True),
        Launch((sweeps, 1, 1), (*integers, every, segments, *shape.geometry[:-2], None, None), adjoint),
        Launch((strips * segments, wide, shape.samples), main_integers, main),
        _sums(shape, needs_R, wide, parts, slots, strip=blocks.strip_rows),
        hor=edges * area * blocks.strip_rows,
        ver=edges * area * blocks.part,
        back_hor=edges * strips * segments * blocks.strip_rows,
        handed=max(handed, adjoint_handed, rings_handed),
        closing=closing,
        scratch=programs * scratch_size(N, rank, blocks.strip_rows, width),
        over_channels=shape.samples * wide * (2 * N + rank) * slots,
        of_parameters=len(shape.orders) * parts * (2 * N + 2 + rank) * E,
    )


@lru_cache(maxsize=512)
def sum_of_directions(shape: Shape) -> Launch:
    programs = sums.direction_programs(shape.batch * shape.points * shape.channels)
    constants = Fixed(DIRECTIONS=len(shape.orders), ELEMENTS=sums.ELEMENTS, num_warps=sums.WARPS, **_COMPILER)
    return Launch((programs, 1, 1), (shape.batch, shape.points, shape.channels), constants)


def kept_size(shape: Shape) -> int:
    """Elements of the states that a 1d forward keeps: one [N, E] per direction, sample and tile of the backward."""
    return shape.samples * cdiv(shape.points, shape.blocks.backward_tile) * shape.dstate * shape.channels


def batch_slice(shape: Shape) -> int:
    """Samples whose carries of a 2d backward fit into what they may take, and into a grid of programs."""
    plan = grid_backward(shape._replace(batch=1), True)
    fit = CARRIES_BYTES // (4 * (plan.hor + 2 * plan.ver + plan.back_hor))
    return max(1, min(fit, _MOST_PROGRAMS // len(shape.orders)))


def packed(inputs: ScanInputs, settings: ScanSettings) -> ScanInputs:
    """The tensors as the kernels take them: x and parameters contiguous, dt, B and C in rows of points."""
    if inputs.x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise BackendError(f"the triton scan takes float32, bfloat16 and float16, not {inputs.x.dtype}")
    if inputs.A.shape[-1] > 64:
        raise BackendError(f"the triton scan takes up to 64 dstates, not {inputs.A.shape[-1]}; take backend 'torch'")
    x, dt, A, B, C, D, R, bias, weight = inputs
    for name, tensor in inputs._asdict().items():
        expected = x.dtype if name in ("x", "dt", "B", "C") else torch.float32
        if tensor is not None and tensor.dtype != expected:
            raise BackendError(f"the triton scan takes {name} in {expected}, not {tensor.dtype}")
    dt, B, C = _in_rows(dt), _in_rows(B), _in_rows(C)
    if _steps(B) != _steps(C):  # the kernels find both by the same offsets
        B, C = _copied(B), _copied(C)
    points, K, N = x.shape[1] * x.shape[2], A.shape[0], A.shape[-1]
    widest = max(x.shape[-1], _steps(dt)[0], _steps(B)[0], K * dt.shape[-1], K * N, 2 * N + dt.shape[-1])
    if points * widest > _LARGEST:
        raise BackendError(
            f"the triton scan takes samples of up to 2^31 numbers; one of {tuple(x.shape[1:])} with its projections "
            "has more: take a larger patch, or backend 'torch'"
        )
    R = None if R is None else R.contiguous()
    weight = None if weight is None else weight.contiguous()
    return ScanInputs(x.contiguous(), dt, A.contiguous(), B, C, D.contiguous(), R, bias.contiguous(), weight)


def shape_of(inputs: ScanInputs, settings: ScanSettings, blocks: Blocks | None) -> Shape:
    """Of packed inputs."""
    x, dt, B = inputs.x, inputs.dt, inputs.B
    (dt_row, dt_direction), (B_row, B_direction) = _steps(dt), _steps(B)
    gpu = gpu_of(x)
    return Shape(
        settings.kind,
        0 if inputs.R is None else _CORRECTIONS[settings.correction],
        tuple(order.code for order in settings.orders),
        *(x.shape[0], x.shape[1], x.shape[2], x.shape[3]),
        inputs.A.shape[-1],
        0 if inputs.dt_weight is None else inputs.dt_weight.shape[-1],
        dt_row,
        dt_direction,
        B_row,
        B_direction,
        x.dtype,
        gpu.multiprocessors,
        blocks_for(gpu.lanes, gpu.amd) if blocks is None else blocks,
        settings.stretch,
        settings.periodic[0] + 2 * settings.periodic[1],
        settings.own,
        settings.hold,
    )


_CORRECTIONS = {"equation": 1, "state": 2}


class GPU(NamedTuple):
    multiprocessors: int
    lanes: int  # of a warp
    amd: bool = False


def gpu_of(tensor: torch.Tensor) -> GPU:
    """The GPU that holds a tensor; a nominal one where there is none."""
    return _gpu(tensor.device.type, tensor.device.index)


@lru_cache
def _gpu(kind: str, index: int | None) -> GPU:
    if kind != "cuda" or not torch.cuda.is_available():
        return GPU(NOMINAL_MULTIPROCESSORS, 32)
    found = torch.cuda.get_device_properties(index)
    return GPU(found.multi_processor_count, getattr(found, "warp_size", 32), torch.version.hip is not None)


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def in_fours(count: int) -> int:
    return 4 * cdiv(count, 4)


def _chunks(shape: Shape, programs: int, tiles: int, again: float) -> tuple[int, int]:
    """Chunks of a sequence, and the steps of each."""
    schedulers = SCHEDULERS * shape.multiprocessors
    # A tile takes about 5000 instructions, an end of another chunk about 60 (half of the chunks come before).
    wanted = shape.blocks.chunks or chunk_count(programs, tiles, schedulers, again=again, composed=1 / 80)
    each = cdiv(tiles, wanted)
    return cdiv(tiles, each), each * shape.blocks.forward_tile


def _wave_integers(shape: Shape, widths: int) -> tuple[int, ...]:
    return (shape.packed_orders, shape.height, shape.width, shape.channels, shape.batch, widths, *shape.steps)


def _wave_constants(shape: Shape, lanes: Wave, **more: Any) -> Fixed:
    sizes = {"TH": shape.blocks.strip_rows, "S": shape.blocks.strips}
    sizes |= {"G": lanes.groups, "M": lanes.dstates, "BE": lanes.channels}
    geometry = {"STRETCHED": shape.stretch != 1.0, "OWN": shape.counts_more}
    return shape.constants(shape.blocks.strips, RANK=shape.rank, **geometry, **sizes, **more)


def _rings(shape: Shape, lanes: Wave, widths: int, adjoint: bool) -> Launch:
    """Which is not launched without rings."""
    geometry, hold = (shape.geometry[:-2] + (None, None), 0) if adjoint else (shape.geometry, shape.holds)
    constants = _wave_constants(shape, lanes, ADJOINT=adjoint, HOLD=hold)
    return Launch((shape.samples * widths, 1, 1), (*_wave_integers(shape, widths), *geometry), constants)


def _ring_sizes(shape: Shape, lanes: Wave, programs: int) -> tuple[int, int]:
    """Elements that grid_rings hands on and leaves."""
    if not shape.rings:
        return 0, 0
    row = lanes.groups * lanes.channels
    handed = programs * 2 * (shape.longest + shape.blocks.strips) * (lanes.dstates + 1) * row
    return handed, programs * 2 * shape.longest * lanes.dstates * row


def _sequence_constants(shape: Shape, **more: Any) -> Fixed:
    blocks = shape.blocks
    tile = {"P": blocks.forward_tile, "BE": blocks.lanes, "SEQUENCE_TILE": blocks.backward_tile}
    return shape.constants(1, RANK=shape.rank, **tile, **more)


def _sequence_sweep(shape: Shape, which: int) -> Fixed:
    # NVIDIA's assembler aims at 128 registers here, and spills one or two at some sizes.
    most = {"maxnreg": shape.blocks.sweep_registers} if shape.blocks.sweep_registers else {}
    modes = shape.modes if which == 1 else {"OWN": False, "HOLD": 0}  # which nu does not depend on
    return _sequence_constants(shape, CORRECTION=0, SWEEP=which, KEEP=False, **modes, **most)


def _sums(shape: Shape, needs_R: bool, wide: int, parts: int, slots: int, strip: int) -> tuple[Launch, Launch]:
    """With rows of dB and dC that are not aligned, and with aligned ones. Without the last two integers: how far apart
    these rows, and those of ddt, are."""
    E, N, rank, K = shape.channels, shape.dstate, shape.rank, len(shape.orders)
    first_position, first_dx, programs = sums.gradient_programs(K, shape.batch, shape.points, E, N, rank, slots)
    sizes = (shape.packed_orders, shape.batch, shape.height, shape.width, E, rank)
    integers = (*sizes, parts, slots, first_position, first_dx)

    def constants(quads: bool) -> Fixed:
        return Fixed(
            DIRECTIONS=K, BLOCKS=wide, LOW_RANK=rank > 0, N=N, NEEDS_R=needs_R, STRIP=strip, SIDE=shape.blocks.part,
            QUADS=quads, ELEMENTS=sums.ELEMENTS, SLOTS=sums.SLOTS, CHANNELS=sums.CHANNELS, num_warps=sums.WARPS,
            **_COMPILER,
        )  # fmt: skip

    return Launch((programs, 1, 1), integers, constants(False)), Launch((programs, 1, 1), integers, constants(True))


def sums_to(launches: tuple[Launch, Launch], dt: torch.Tensor, B: torch.Tensor, C: torch.Tensor) -> Launch:
    """The sums of gradients, written to these tensors: in fours where all rows of B and C are aligned so."""
    row = B.stride(3)
    fours = not (B.shape[-1] % 4 or row % 4 or B.storage_offset() % 4 or C.storage_offset() % 4)
    grid, integers, constants = launches[fours]
    return Launch(grid, (*integers, row, dt.stride(3)), constants)


def _steps(tensor: torch.Tensor) -> tuple[int, int]:
    """Of [B, H, W, K, n] in rows: elements from a point to the next, and from a direction to the next. What torch says
    of an axis with one element means nothing."""
    batch, height, width, K, count = tensor.shape
    b, i, j, k, _ = tensor.stride()
    row = j if width > 1 else i if height > 1 else b if batch > 1 else K * count
    return row, k if K > 1 else 0


def _in_rows(tensor: torch.Tensor) -> torch.Tensor:
    """[B, H, W, K, n] whose points are equally far apart, with n contiguous."""
    batch, height, width, _, count = tensor.shape
    b, i, _, _, last = tensor.stride()
    row, _ = _steps(tensor)
    even = (height == 1 or i == width * row) and (batch == 1 or b == height * width * row)
    return tensor if even and (count == 1 or last == 1) else _copied(tensor)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, with the strides of a new tensor: `contiguous` keeps those of axes with one element."""
    return tensor.new_empty(tensor.shape).copy_(tensor)
