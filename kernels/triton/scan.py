"""The scan on a GPU: launches Algorithm 2 (triton_forward) and its adjoint (triton_backward), one direction at a time.

Directions follow each other on the stream and add to y (dx) in place, in float32: there are no K copies of anything
with E channels. Where a small batch would leave a GPU empty, the traversal is cut into chunks (triton_chunks).
Axes: B batch, H x W grid, E channels, N dstates, K scan directions, r rank of the time step.
"""

from typing import Any

import torch
import triton

from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
from geomano_hpc.kernels.triton.backward import backward_kernel
from geomano_hpc.kernels.triton.backward_grid import grid_backward_kernel
from geomano_hpc.kernels.triton.blocks import SEQUENCE_TILE, Blocks, backward_blocks, forward_blocks
from geomano_hpc.kernels.triton.chunks import combine_kernel
from geomano_hpc.kernels.triton.forward import forward_kernel
from geomano_hpc.kernels.triton.plan import Cut, Plan, walk

_COMBINED_COLUMNS = 8  # of one program, which reads A once for all of them
_MODES = {"OUTPUT": False, "KEEP": False, "ADJOINT": False, "ENTRY": False, "ENDS": False}


def carries_size(inputs: ScanInputs, settings: ScanSettings, _blocks: Blocks | None = None) -> int:
    """Elements of the states that the forward keeps for the backward: 1d one [N, E] per direction, sample and tile.

    2d keeps none: the edges of all tiles of all directions would be more than the inputs. The backward sweeps them
    again for one direction at a time.
    """
    if settings.kind == "2d":
        return 0
    batch, height, width, channels = inputs.x.shape
    tile = _blocks.positions if _blocks else SEQUENCE_TILE
    return len(settings.orders) * batch * -(-height * width // tile) * inputs.A.shape[-1] * channels


def forward(
    inputs: ScanInputs, settings: ScanSettings, keep_carries: bool, *, _blocks: Blocks | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """y [B, H, W, E] in x's precision, and the carries (none unless asked for)."""
    plan = Plan(inputs, settings)
    blocks = _blocks or forward_blocks(*plan.sizes)
    y = plan.empty(*inputs.x.shape)
    keep = keep_carries and not plan.two_d
    carries = plan.empty(carries_size(inputs, settings, _blocks) if keep else 0)
    with torch.cuda.device_of(inputs.x):
        for k, order in enumerate(settings.orders):
            cut = plan.forth(order, blocks)
            hor, ver = plan.carry_buffers(cut, keep=False)
            arguments = plan.arguments(k, blocks) | plan.activations(k, order)
            if cut.chunks > 1:
                _enter_chunks(plan, cut, blocks, arguments, ver, entry_slots=2 if plan.two_d else 1)
            kept = carries.view(len(settings.orders), -1)[k] if keep else y
            modes = {"OUTPUT": True, "KEEP": keep, "ENTRY": cut.chunks > 1}
            arguments |= {"first": int(k == 0), "kept": kept, "P_hor": hor, "P_ver": ver, "span": y}
            arguments |= {"y": walk(y, order).corner}
            _launch(forward_kernel, plan.grid(cut, blocks), _forward_arguments(cut, arguments, modes))
    return y.to(inputs.x.dtype), carries


def _forward_arguments(cut: Cut, arguments: dict[str, Any], modes: dict[str, bool]) -> dict[str, Any]:
    return arguments | cut.arguments | {"TWO_D": cut.two_d} | _MODES | modes


def _sweep_arguments(arguments: dict[str, Any], hor: torch.Tensor, ver: torch.Tensor) -> dict[str, Any]:
    """Of a forward kernel without output, which never follows y."""
    unused = {"y": hor, "kept": hor, "span": hor}
    return arguments | unused | {"first": 0, "P_hor": hor, "P_ver": ver, "CORRECTION": 0}


def _enter_chunks(
    plan: Plan,
    cut: Cut,
    blocks: Blocks,
    arguments: dict[str, Any],
    entries: torch.Tensor,
    entry_slots: int,
    adjoint: bool = False,
    kept_hor: torch.Tensor | None = None,
) -> None:
    """Fill the states at which chunks start: a sweep over each from zero, and the composition of the chunks.

    entries [B, chunks, slots, N, columns, E]: the first slot of each chunk. kept_hor: gets P_hor of every tile, which
    does not depend on where a chunk starts, since rows are whole.
    """
    hor, ver = plan.carry_buffers(cut, keep=False)
    span = plan.empty(plan.batch, cut.chunks, cut.carry_columns, plan.channels)
    modes = {"ADJOINT": adjoint, "ENDS": True, "KEEP": kept_hor is not None}
    sweep = _sweep_arguments(arguments, hor if kept_hor is None else kept_hor, ver) | {"span": span}
    _launch(forward_kernel, plan.grid(cut, blocks), _forward_arguments(cut, sweep, modes))
    width = min(64, triton.next_power_of_2(plan.channels))
    channel_blocks = triton.cdiv(plan.channels, width)
    combine = {
        "A": arguments["A"], "ends": ver, "span": span, "entries": entries,
        "E": plan.channels, "N": plan.dstate, "columns": cut.carry_columns, "blocks": channel_blocks,
        "chunks": cut.chunks, "end_slots": 2 if cut.two_d else 1, "end_slot": cut.per_chunk % 2 if cut.two_d else 0,
        "entry_slots": entry_slots, "BE": width, "N_BLOCK": plan.dstate_block, "COLUMNS": _COMBINED_COLUMNS,
        "num_warps": 4, "num_stages": 1,
    }  # fmt: skip
    groups = triton.cdiv(cut.carry_columns, _COMBINED_COLUMNS)
    _launch(combine_kernel, (plan.batch * groups * channel_blocks,), combine)


def _sweep(plan: Plan, cut: Cut, blocks: Blocks, arguments: dict[str, Any], adjoint: bool) -> tuple[torch.Tensor, ...]:
    """P_hor and P_ver into every tile of a grid. Rows of tiles that are chunks need one pass only."""
    hor, ver = plan.carry_buffers(cut, keep=True)
    if cut.chunks > 1:
        _enter_chunks(plan, cut, blocks, arguments, ver, 1, adjoint, hor)
    else:
        sweep = _sweep_arguments(arguments, hor, ver)
        modes = {"KEEP": True, "ADJOINT": adjoint}
        _launch(forward_kernel, plan.grid(cut, blocks), _forward_arguments(cut, sweep, modes))
    return hor, ver


def _adjoint_arguments(plan: Plan, k: int, cut: Cut, blocks: Blocks, dy: torch.Tensor) -> dict[str, Any]:
    """Of a sweep of the adjoint states, which takes dy for x and C for B."""
    arguments = plan.arguments(k, blocks) | plan.activations(k, cut.order)
    return arguments | walk(dy, cut.order).arguments("x") | {"B": arguments["C"]}


def _launch_sequence(
    plan: Plan, k: int, blocks: Blocks, dy: torch.Tensor, kept: torch.Tensor, arguments: dict[str, Any]
) -> None:
    """The gradients of a 1d scan: chunks side by side, in each one tile after the other."""
    cut, sweeping = plan.back(plan.settings.orders[k], blocks), blocks.for_sweeps
    entries = kept
    if cut.chunks > 1:
        entries = plan.carry_buffers(cut, keep=False)[1]
        _enter_chunks(plan, cut, sweeping, _adjoint_arguments(plan, k, cut, sweeping, dy), entries, 1, adjoint=True)
    arguments |= {"kept": kept, "entries": entries, "ENTRY": cut.chunks > 1, "P": blocks.positions}
    arguments |= {"chunks": cut.chunks, "per_chunk": cut.per_chunk}
    arguments |= {"QUADS": triton.cdiv(blocks.bundle, 4), "RANK_PIECES": triton.cdiv(plan.rank, 16)}
    _launch(backward_kernel, (plan.batch * cut.chunks * arguments["blocks"],), arguments)


def _launch_grid(plan: Plan, k: int, blocks: Blocks, dy: torch.Tensor, arguments: dict[str, Any]) -> None:
    """The gradients of a 2d scan: all tiles side by side, or one diagonal of tiles after the other."""
    order, sweeping = plan.settings.orders[k], blocks.for_sweeps
    forth = plan.strips(order, blocks, adjoint=False)
    states = plan.arguments(k, sweeping) | plan.activations(k, order)
    hor, ver = _sweep(plan, forth, sweeping, states, adjoint=False)
    arguments |= {"P_hor": hor, "P_ver": ver, "TH": blocks.tile_h, "TW": blocks.tile_w}
    arguments |= {"RANK_BLOCK": triton.next_power_of_2(max(plan.rank, 1))}
    tiles_h, tiles_w = forth.length, forth.tiles_w // forth.every
    if blocks.chunks > 1:
        back = plan.strips(order, blocks, adjoint=True)
        adjoint = _adjoint_arguments(plan, k, back, sweeping, dy)
        back_ver, back_hor = _sweep(plan, back, sweeping, adjoint, adjoint=True)
        tiles = [(tiles_h * tiles_w, 0, 0)]
    else:
        edges = (plan.dstate, blocks.tile_h, plan.channels), (plan.dstate, blocks.tile_w, plan.channels)
        back_hor = plan.empty(plan.batch, 2, tiles_h, *edges[0])
        back_ver = plan.empty(plan.batch, 2, tiles_w, *edges[1])
        tiles = []
        for diagonal in reversed(range(tiles_h + tiles_w - 1)):
            first_row, last_row = max(0, diagonal - tiles_w + 1), min(diagonal, tiles_h - 1)
            tiles.append((last_row - first_row + 1, diagonal, first_row))
    arguments |= {"Q_hor": back_hor, "Q_ver": back_ver, "PASS_ON": blocks.chunks == 1}
    for count, diagonal, first_row in tiles:
        here = {"count": count, "diagonal": diagonal, "first_row": first_row}
        _launch(grid_backward_kernel, (plan.batch * count * arguments["blocks"],), arguments | here)


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
    plan = Plan(inputs, settings)
    blocks = _blocks or backward_blocks(*plan.sizes)
    K, N, E, r, batch = len(settings.orders), plan.dstate, plan.channels, plan.rank, plan.batch
    needs_R = needs_R and inputs.R is not None
    dy = dy.contiguous()  # as x and dx are
    points = (batch, plan.height, plan.width)

    dx = plan.empty(*inputs.x.shape)
    ddt, dB, dC = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (inputs.dt, inputs.B, inputs.C))
    partial = plan.empty(triton.cdiv(E, blocks.program_channels), N + N + r, *points)
    parameters = ["dA", "dD", "dbias"] + ["dR"] * needs_R + ["dweight"] * (r > 0)
    gradients: dict[str, list[torch.Tensor]] = {name: [] for name in parameters}
    with torch.cuda.device_of(inputs.x):
        for k, order in enumerate(settings.orders):
            of_points = walk(partial, order, grid_axis=3)
            arguments = plan.rows_of_points(k, blocks) | {"NEEDS_R": needs_R, "first": int(k == 0)}
            arguments |= {"dy": dy, "dx": dx, "ddt": ddt[..., k, :], "ddt_row": ddt.stride(2)}
            arguments |= {"dBC": partial, "positions": batch * plan.height * plan.width}
            arguments |= {"corner": of_points.corner.storage_offset(), "point_i": of_points.i, "point_j": of_points.j}
            forth = plan.forth(order, blocks)
            arguments |= {"HT": forth.rows, "WT": forth.columns}
            parts = forth.tiles if plan.two_d else forth.chunks
            rows = {"dA": N, "dR": N if needs_R else 0, "dD": 1, "dbias": 1, "dweight": r}
            sums = {name: plan.empty(batch, parts, count, E) for name, count in rows.items()}
            if plan.two_d:
                _launch_grid(plan, k, blocks, dy, arguments | sums)
            else:
                _launch_sequence(plan, k, blocks, dy, carries.view(K, -1)[k], arguments | sums)
            for name in gradients:
                gradients[name].append(sums[name].sum((0, 1)))
            over_channels = partial.sum(0).permute(1, 2, 3, 0)
            dB[..., k, :], dC[..., k, :] = over_channels[..., :N], over_channels[..., N : 2 * N]
            if r:
                ddt[..., k, :] = over_channels[..., 2 * N :]
    found = {name: torch.stack(tensors) for name, tensors in gradients.items()}
    return ScanInputs(
        x=dx.to(inputs.x.dtype),
        dt=ddt,
        A=found["dA"].transpose(1, 2).contiguous(),
        B=dB,
        C=dC,
        D=found["dD"].squeeze(1),
        R=found["dR"].transpose(1, 2).contiguous() if needs_R else None,
        dt_bias=found["dbias"].squeeze(1),
        dt_weight=found["dweight"].transpose(1, 2).contiguous() if r else None,
    )


def _launch(kernel: Any, grid: tuple[int], arguments: dict[str, Any]) -> None:
    """The one place where kernels start: the compile check and the traffic count listen here."""
    kernel[grid](**arguments)
