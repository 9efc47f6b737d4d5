"""The scan on a GPU: launches Algorithm 2 (triton_forward) and its adjoint (triton_backward), one direction at a time.

Directions follow each other on the stream and add to y (dx) in place, in float32: there are no K copies of anything
with E channels. Axes: B batch, H x W grid, E channels, N dstates, K scan directions, r rank of the time step.
"""

from typing import Any, NamedTuple

import torch
import triton

from geomano_hpc.errors import BackendError
from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
from geomano_hpc.kernels.orders import ScanOrder
from geomano_hpc.kernels.triton_backward import backward_kernel
from geomano_hpc.kernels.triton_blocks import (
    NOMINAL_MULTIPROCESSORS,
    Blocks,
    backward_blocks,
    forward_blocks,
    sequence_tile,
    warps,
)
from geomano_hpc.kernels.triton_forward import forward_kernel


class _Walk(NamedTuple):
    """A tensor as a kernel sees it: from the corner where the traversal starts, with steps that may be negative."""

    corner: torch.Tensor
    b: int
    i: int
    j: int

    def steps(self, name: str) -> dict[str, int]:
        return {f"{name}_b": self.b, f"{name}_i": self.i, f"{name}_j": self.j}


def _walk(tensor: torch.Tensor, order: ScanOrder, grid_axis: int = 1) -> _Walk:
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
    return _Walk(corner, batch_step, i, j)


class _Plan:
    """What the launches of one call share."""

    def __init__(self, inputs: ScanInputs, settings: ScanSettings):
        if inputs.x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise BackendError(f"the triton scan takes float32, bfloat16 and float16, not {inputs.x.dtype}")
        activations = ("x", "dt", "B", "C")  # the kernels take their strides; parameters are packed
        self.inputs = ScanInputs._make(
            None if t is None else _unit_last_stride(t) if name in activations else t.contiguous()
            for name, t in inputs._asdict().items()
        )
        self.settings = settings
        self.batch, self.height, self.width, self.channels = inputs.x.shape
        self.dstate = inputs.A.shape[-1]
        self.rank = 0 if inputs.dt_weight is None else inputs.dt_weight.shape[-1]
        self.two_d = settings.kind == "2d"
        self.correction = 0 if inputs.R is None else {"equation": 1, "state": 2}[settings.correction]

    @property
    def sizes(self) -> tuple[int, int, int, str, int]:
        """What block sizes depend on."""
        return self.batch, self.channels, self.rank, self.settings.kind, _multiprocessors(self.inputs.x)

    def turned(self, order: ScanOrder) -> tuple[int, int]:
        return (self.width, self.height) if order.column_major else (self.height, self.width)

    def tiles(self, order: ScanOrder, blocks: Blocks) -> tuple[int, int]:
        """Tiles from top to bottom and from left to right; of a sequence, 1 and all."""
        rows, columns = self.turned(order)
        if not self.two_d:
            return 1, triton.cdiv(rows * columns, blocks.positions)
        return triton.cdiv(rows, blocks.tile_h), triton.cdiv(columns, blocks.tile_w)

    def arguments(self, k: int, blocks: Blocks) -> dict[str, Any]:
        """What forward and backward kernel take of direction k."""
        order, inputs = self.settings.orders[k], self.inputs
        rows, columns = self.turned(order)
        arguments: dict[str, Any] = {
            "A": inputs.A[k], "D": inputs.D[k], "bias": inputs.dt_bias[k],
            # A pointer that a kernel without this term never follows.
            "R": inputs.A[k] if inputs.R is None else inputs.R[k],
            "weight": inputs.A[k] if inputs.dt_weight is None else inputs.dt_weight[k],
            "HT": rows, "WT": columns, "E": self.channels, "N": self.dstate,
            "blocks": triton.cdiv(self.channels, blocks.channels), "first": int(k == 0),
            "TWO_D": self.two_d, "CORRECTION": self.correction,
            "RANK": self.rank, "RANK_BLOCK": max(16, triton.next_power_of_2(self.rank)),
            "TH": blocks.tile_h, "TW": blocks.tile_w, "BE": blocks.channels,
            "N_BLOCK": max(2, triton.next_power_of_2(self.dstate)),
            "EVEN": self.channels % blocks.channels == 0,
            # One stage: a pipelined loop would read the next tile's carry before this tile has written it.
            "num_warps": warps(blocks.threads, 64 if torch.version.hip else 32), "num_stages": 1,
        }  # fmt: skip
        for name in ("x", "dt", "B", "C"):
            tensor = getattr(inputs, name)
            walk = _walk(tensor if name == "x" else tensor[..., k, :], order)
            arguments |= {name: walk.corner} | walk.steps(name)
        return arguments

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.inputs.x.device)

    def carry_buffers(self, slots_hor: int, slots_ver: int, blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor]:
        """P_hor and P_ver of Algorithm 2."""
        hor = self.empty(self.batch, slots_hor, self.dstate, blocks.tile_h, self.channels)
        ver = self.empty(self.batch, slots_ver, self.dstate, blocks.tile_w, self.channels)
        return hor, ver

    def grid(self, blocks: Blocks) -> tuple[int]:
        return (self.batch * triton.cdiv(self.channels, blocks.channels),)


def carries_size(inputs: ScanInputs, settings: ScanSettings, _blocks: Blocks | None = None) -> int:
    """Elements of the states that the forward keeps for the backward: 1d one [N, E] per direction, sample and tile.

    2d keeps none: the edges of all tiles of all directions would be more than the inputs. The backward runs
    the forward kernel again for one direction at a time.
    """
    if settings.kind == "2d":
        return 0
    batch, height, width, channels = inputs.x.shape
    tile = _blocks.positions if _blocks else sequence_tile(batch, channels)
    return len(settings.orders) * batch * -(-height * width // tile) * inputs.A.shape[-1] * channels


def forward(
    inputs: ScanInputs, settings: ScanSettings, keep_carries: bool, *, _blocks: Blocks | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """y [B, H, W, E] in x's precision, and the carries (none unless asked for)."""
    plan = _Plan(inputs, settings)
    blocks = _blocks or forward_blocks(*plan.sizes)
    y = plan.empty(*inputs.x.shape)
    keep = keep_carries and not plan.two_d
    carries = plan.empty(carries_size(inputs, settings, _blocks) if keep else 0)
    with torch.cuda.device_of(inputs.x):
        for k, order in enumerate(settings.orders):
            _, tiles_w = plan.tiles(order, blocks)
            hor, ver = plan.carry_buffers(2, 2 * tiles_w, blocks) if plan.two_d else (y, y)
            kept = carries.view(len(settings.orders), -1)[k] if keep else y
            walk = _walk(y, order)
            arguments = plan.arguments(k, blocks) | {"kept": kept, "P_hor": hor, "P_ver": ver}
            arguments |= {"y": walk.corner, "OUTPUT": True, "KEEP": keep} | walk.steps("y")
            _launch(forward_kernel, plan.grid(blocks), arguments)
    return y.to(inputs.x.dtype), carries


def backward(
    dy: torch.Tensor,
    inputs: ScanInputs,
    settings: ScanSettings,
    carries: torch.Tensor,
    needs_R: bool,
    *,
    _blocks: Blocks | None = None,
) -> ScanInputs:
    """The gradients of all inputs, in the inputs' precisions; of R only if asked for."""
    plan = _Plan(inputs, settings)
    blocks = _blocks or backward_blocks(*plan.sizes)
    K, N, E, r, batch = len(settings.orders), plan.dstate, plan.channels, plan.rank, plan.batch
    needs_R = needs_R and inputs.R is not None
    dy = _unit_last_stride(dy)
    channel_blocks = triton.cdiv(E, blocks.channels)
    points = (batch, plan.height, plan.width)

    dx = plan.empty(*inputs.x.shape)
    ddt, dB, dC = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (inputs.dt, inputs.B, inputs.C))
    partial_B, partial_C = plan.empty(channel_blocks, N, *points), plan.empty(channel_blocks, N, *points)
    partial_dt = plan.empty(channel_blocks, r, *points) if r else ddt
    sums = {name: plan.empty(K, batch, N, E) for name in ("dA", "dR")}
    sums |= {name: plan.empty(K, batch, E) for name in ("dD", "dbias")}
    sums |= {"dweight": plan.empty(K, batch, r, E)}
    with torch.cuda.device_of(inputs.x):
        for k, order in enumerate(settings.orders):
            tiles_h, tiles_w = plan.tiles(order, blocks)
            hor = ver = adjoint_hor = adjoint_ver = kept = dx  # never followed where a kind has no such carry
            if plan.two_d:
                hor, ver = plan.carry_buffers(tiles_h * tiles_w, tiles_h * tiles_w, blocks)
                adjoint_hor, adjoint_ver = plan.carry_buffers(2, 2 * tiles_w, blocks)
                sweep = plan.arguments(k, blocks) | {"kept": hor, "P_hor": hor, "P_ver": ver}
                sweep |= {"y": dx, "OUTPUT": False, "KEEP": True} | _walk(dx, order).steps("y")
                _launch(forward_kernel, plan.grid(blocks), sweep)
            else:
                kept = carries.view(K, -1)[k]
            walks = {"dy": _walk(dy, order), "dx": _walk(dx, order)}
            point = _walk(partial_B, order, grid_axis=3)
            walks["ddt"] = _walk(ddt[..., k, :], order)
            arguments = plan.arguments(k, blocks)
            for name, walk in walks.items():
                arguments |= {name: walk.corner} | walk.steps(name)
            arguments |= point.steps("point") | {name: tensor[k] for name, tensor in sums.items()}
            arguments |= {"dB": point.corner, "dC": _walk(partial_C, order, grid_axis=3).corner, "kept": kept}
            arguments |= {"P_hor": hor, "P_ver": ver, "Q_hor": adjoint_hor, "Q_ver": adjoint_ver}
            if r:
                arguments["ddt"] = _walk(partial_dt, order, grid_axis=3).corner
            arguments |= {"positions": batch * plan.height * plan.width, "NEEDS_R": needs_R}
            _launch(backward_kernel, plan.grid(blocks), arguments)
            dB[..., k, :] = partial_B.sum(0).permute(1, 2, 3, 0)
            dC[..., k, :] = partial_C.sum(0).permute(1, 2, 3, 0)
            if r:
                ddt[..., k, :] = partial_dt.sum(0).permute(1, 2, 3, 0)
    over_batch = {name: tensor.sum(1) for name, tensor in sums.items()}
    return ScanInputs(
        x=dx.to(inputs.x.dtype),
        dt=ddt,
        A=over_batch["dA"].transpose(1, 2).contiguous(),
        B=dB,
        C=dC,
        D=over_batch["dD"],
        R=over_batch["dR"].transpose(1, 2).contiguous() if needs_R else None,
        dt_bias=over_batch["dbias"],
        dt_weight=over_batch["dweight"].transpose(1, 2).contiguous() if r else None,
    )


def _launch(kernel: Any, grid: tuple[int], arguments: dict[str, Any]) -> None:
    """The one place where kernels start: the compile check and the traffic count listen here."""
    kernel[grid](**arguments)


def _unit_last_stride(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _multiprocessors(tensor: torch.Tensor) -> int:
    """Of the GPU that holds the tensor; nominal where there is none."""
    if not tensor.is_cuda:
        return NOMINAL_MULTIPROCESSORS
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count
