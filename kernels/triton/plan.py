"""What the launches of one Triton scan share: tensors as strides in scan order, tiles, chunks and buffers of carries.

Axes: B batch, H x W grid, E channels, N dstates, K scan directions, r rank of the time step.
"""

from typing import Any, NamedTuple

import torch
import triton

from geomano_hpc.errors import BackendError
from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
from geomano_hpc.kernels.orders import ScanOrder
from geomano_hpc.kernels.triton.blocks import NOMINAL_MULTIPROCESSORS, Blocks, warps


class Walk(NamedTuple):
    """A tensor as a kernel sees it: from the corner where the traversal starts, with steps that may be negative."""

    corner: torch.Tensor
    b: int
    i: int
    j: int

    def steps(self, name: str) -> dict[str, int]:
        return {f"{name}_b": self.b, f"{name}_i": self.i, f"{name}_j": self.j}

    def arguments(self, name: str) -> dict[str, Any]:
        return {name: self.corner} | self.steps(name)


def walk(tensor: torch.Tensor, order: ScanOrder, grid_axis: int = 1) -> Walk:
    """Traverse_d of Algorithm 1 as strides. The batch axis is in front of the grid's two."""
    batch_step, row_step, column_step = tensor.stride()[grid_axis - 1 : grid_axis + 2]
    corner = tensor
    if order.rows_backwards:
        corner = corner.narrow(grid_axis, tensor.shape[grid_axis] - 1, 1)
        row_step = -row_step
    if order.columns_backwards:
        corner = corner.narrow(grid_axis + 1, tensor.shape[grid_axis + 1] - 1, 1)
        column_step = -column_step
    i, j = (column_step, row_step) if order.column_major else (row_step, column_step)
    return Walk(corner, batch_step, i, j)


class Cut(NamedTuple):
    """A traversal in chunks of tiles (1d) or of rows of tiles (2d), which may begin before the grid does."""

    order: ScanOrder
    rows: int  # of the turned grid
    columns: int
    tile_h: int
    tile_w: int
    chunks: int
    per_chunk: int
    lead_i: int
    lead_j: int
    two_d: bool
    every: int = 1  # tiles side by side in one of a backward

    @property
    def tiles_w(self) -> int:
        return self.every * triton.cdiv(self.columns + self.lead_j, self.every * self.tile_w) if self.two_d else 1

    @property
    def carry_columns(self) -> int:
        """States that pass from a chunk to the next, per dstate and channel."""
        return self.tiles_w * self.tile_w if self.two_d else 1

    @property
    def tiles(self) -> int:
        """Of a grid."""
        return triton.cdiv(self.rows, self.tile_h) * self.tiles_w

    @property
    def length(self) -> int:
        """Tiles (1d) or rows of tiles (2d), with those of the last chunk that may lie outside."""
        return self.chunks * self.per_chunk

    @property
    def arguments(self) -> dict[str, Any]:
        return {
            "HT": self.rows, "WT": self.columns, "chunks": self.chunks, "per_chunk": self.per_chunk,
            "lead_i": self.lead_i, "lead_j": self.lead_j, "TH": self.tile_h, "TW": self.tile_w, "EVERY": self.every,
        }  # fmt: skip


class Plan:
    """The shapes of one call, and what they mean for a launch."""

    def __init__(self, inputs: ScanInputs, settings: ScanSettings):
        if inputs.x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise BackendError(f"the triton scan takes float32, bfloat16 and float16, not {inputs.x.dtype}")
        activations = ("dt", "B", "C")  # the kernels take their strides; x is packed as y is, and so are parameters
        self.inputs = ScanInputs._make(
            None if t is None else unit_last_stride(t) if name in activations else t.contiguous()
            for name, t in inputs._asdict().items()
        )
        if self.inputs.B.stride() != self.inputs.C.stride():  # the kernels find both by the same offsets
            self.inputs = self.inputs._replace(B=self.inputs.B.contiguous(), C=self.inputs.C.contiguous())
        self.settings = settings
        self.batch, self.height, self.width, self.channels = inputs.x.shape
        self.dstate = inputs.A.shape[-1]
        self.rank = 0 if inputs.dt_weight is None else inputs.dt_weight.shape[-1]
        self.two_d = settings.kind == "2d"
        self.correction = 0 if inputs.R is None else {"equation": 1, "state": 2}[settings.correction]
        self.dstate_block = max(2, triton.next_power_of_2(self.dstate))

    @property
    def sizes(self) -> tuple[int, int, int, int, int, str, int, int, int]:
        """What block sizes depend on."""
        x = self.inputs.x
        shape = (self.batch, self.height, self.width, self.channels, self.rank)
        return (*shape, self.settings.kind, _multiprocessors(x), x.element_size(), self.dstate)

    def forth(self, order: ScanOrder, blocks: Blocks) -> Cut:
        """The traversal of Algorithm 2."""
        rows, columns = self._turned(order)
        length = triton.cdiv(rows, blocks.tile_h) if self.two_d else triton.cdiv(rows * columns, blocks.positions)
        chunks, per_chunk = _chunks(length, blocks)
        return Cut(order, rows, columns, blocks.tile_h, blocks.tile_w, chunks, per_chunk, 0, 0, self.two_d)

    def back(self, order: ScanOrder, blocks: Blocks) -> Cut:
        """The traversal of the adjoint states of a sequence, from its end.

        Its tiles are those of `forth`, so what the last of them has too much comes first here.
        """
        forth = self.forth(order, blocks)
        lead = forth.length * blocks.positions - forth.rows * forth.columns
        opposite = ScanOrder(order.column_major, not order.rows_backwards, not order.columns_backwards)
        return forth._replace(order=opposite, lead_j=lead)

    def strips(self, order: ScanOrder, blocks: Blocks, adjoint: bool) -> Cut:
        """The traversal of a grid that leaves the carries into the tiles of a backward: of the states, or of the
        adjoint states from the end, transposed, since they take columns before rows.

        It is one chunk, or each row of tiles is a chunk.
        """
        rows, columns = self._turned(order)
        height, width, lead_i, lead_j = blocks.tile_h, blocks.tile_w, 0, 0
        if adjoint:
            order = ScanOrder(not order.column_major, not order.rows_backwards, not order.columns_backwards)
            rows, columns, height, width = columns, rows, width, height
            # The tiles are the same, so what the last of them has too much comes first here.
            lead_i, lead_j = -rows % height, -columns % width
        narrow = min(width, max(1, blocks.sweep_positions // height)) if blocks.sweep_positions else width
        length = triton.cdiv(rows, height)
        chunks, per_chunk = (length, 1) if blocks.chunks > 1 else (1, length)
        return Cut(order, rows, columns, height, narrow, chunks, per_chunk, lead_i, lead_j, True, width // narrow)

    def arguments(self, k: int, blocks: Blocks) -> dict[str, Any]:
        """What the kernels take of direction k, apart from activations and their order."""
        inputs = self.inputs
        return {
            "A": inputs.A[k], "D": inputs.D[k], "bias": inputs.dt_bias[k],
            # A pointer that a kernel without this term never follows.
            "R": inputs.A[k] if inputs.R is None else inputs.R[k],
            "weight": inputs.A[k] if inputs.dt_weight is None else inputs.dt_weight[k],
            "E": self.channels, "N": self.dstate, "blocks": triton.cdiv(self.channels, blocks.channels),
            "CORRECTION": self.correction, "RANK": self.rank, "RANK_BLOCK": max(16, triton.next_power_of_2(self.rank)),
            "BE": blocks.channels, "N_BLOCK": self.dstate_block, "EVEN": self.channels % blocks.channels == 0,
            # One stage: a pipelined loop would read the next tile's carry before this tile has written it.
            "num_warps": warps(blocks.threads, 64 if torch.version.hip else 32), "num_stages": 1,
        }  # fmt: skip

    def rows_of_points(self, k: int, blocks: Blocks) -> dict[str, Any]:
        """`arguments` and activations as the backward takes them: rows of points, and channel blocks in bundles."""
        dt, B, C = (t[..., k, :].flatten(0, 2) for t in (self.inputs.dt, self.inputs.B, self.inputs.C))
        arguments = self.arguments(k, blocks)
        del arguments["RANK_BLOCK"]
        return arguments | {
            "x": self.inputs.x, "dt": dt, "B": B, "C": C, "dt_row": dt.stride(0), "B_row": B.stride(0),
            "blocks": triton.cdiv(self.channels, blocks.program_channels), "bundle": blocks.bundle,
        }  # fmt: skip

    def activations(self, k: int, order: ScanOrder) -> dict[str, Any]:
        arguments = walk(self.inputs.x, order).arguments("x")
        for name in ("dt", "B"):
            arguments |= walk(getattr(self.inputs, name)[..., k, :], order).arguments(name)
        return arguments | {"C": walk(self.inputs.C[..., k, :], order).corner}

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.inputs.x.device)

    def carry_buffers(self, cut: Cut, keep: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """P_hor into every tile of a backward (with keep) and P_ver; of a sequence what enters chunks, as P_ver."""
        if not cut.two_d:
            ver = self.empty(self.batch, cut.chunks, self.dstate, self.channels)
            return ver, ver
        ver_slots = cut.per_chunk if keep else 2
        ver = self.empty(self.batch, cut.chunks, ver_slots, self.dstate, cut.carry_columns, self.channels)
        if not keep:
            return ver, ver
        tiles = cut.per_chunk * cut.tiles_w // cut.every
        return self.empty(self.batch, cut.chunks, tiles, self.dstate, cut.tile_h, self.channels), ver

    def grid(self, cut: Cut, blocks: Blocks) -> tuple[int]:
        return (self.batch * cut.chunks * triton.cdiv(self.channels, blocks.channels),)

    def _turned(self, order: ScanOrder) -> tuple[int, int]:
        return (self.width, self.height) if order.column_major else (self.height, self.width)


def unit_last_stride(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _chunks(length: int, blocks: Blocks) -> tuple[int, int]:
    """Chunks of equal size, no more than asked for, and their size."""
    per_chunk = triton.cdiv(length, blocks.chunks)
    return triton.cdiv(length, per_chunk), per_chunk


def _multiprocessors(tensor: torch.Tensor) -> int:
    """Of the GPU that holds the tensor; nominal where there is none."""
    if not tensor.is_cuda:
        return NOMINAL_MULTIPROCESSORS
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count
