"""The scan on a GPU: buffers, launches and nothing else. plan.py says what is launched, the kernels say how.

All directions of a call run in one launch. Each has a y (a dx) of its own, and sums.py adds them in a fixed order.
Axes: B batch, H x W grid, E channels, N dstates, K scan directions, r rank of the time step.
"""

from collections.abc import Callable
from typing import Any

import torch

from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings
from geomano_hpc.kernels.triton import launching, plan
from geomano_hpc.kernels.triton.blocks import Blocks
from geomano_hpc.kernels.triton.grid_backward import grid_backward_kernel
from geomano_hpc.kernels.triton.grid_forward import grid_forward_kernel
from geomano_hpc.kernels.triton.grid_rings import grid_rings_kernel
from geomano_hpc.kernels.triton.grid_sweep import grid_sweep_kernel
from geomano_hpc.kernels.triton.sequence_backward import sequence_backward_kernel
from geomano_hpc.kernels.triton.sequence_forward import sequence_forward_kernel
from geomano_hpc.kernels.triton.sums import sum_directions, sum_gradients


def carries_size(inputs: ScanInputs, settings: ScanSettings, _blocks: Blocks | None = None) -> int:
    """Elements of the states that the forward keeps for the backward: 1d one [N, E] per direction, sample and tile.

    2d keeps none: the edges of all tiles of all directions would be more than the inputs. The backward sweeps again.
    """
    if settings.kind == "2d":
        return 0
    batch, height, width, channels = inputs.x.shape
    tile = (_blocks or Blocks()).backward_tile
    return len(settings.orders) * batch * plan.cdiv(height * width, tile) * inputs.A.shape[-1] * channels


def forward(
    inputs: ScanInputs, settings: ScanSettings, keep_carries: bool, *, _blocks: Blocks | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """y [B, H, W, E] in x's precision, and the carries (none unless asked for)."""
    inputs = plan.packed(inputs, settings)
    shape = plan.shape_of(inputs, settings, _blocks)
    x = inputs.x
    y, empty = x.new_empty(x.shape), inputs.A.new_empty  # float32, as every buffer is
    alone = len(shape.orders) == 1 and x.dtype == torch.float32
    y_part = y if alone else empty(len(shape.orders) * x.numel())
    tensors = _tensors(inputs)
    later: list[launching.Start] = []
    kept = empty(0)
    if shape.kind == "2d":
        grid = plan.grid_forward(shape)
        x, dt, A, B, _, _, _, bias, weight = tensors
        handed, closing = empty(grid.handed), empty(grid.closing) if shape.rings else None
        starts = [_start(grid_forward_kernel, grid.main, *tensors, y_part, handed, closing)]
        if shape.rings:
            starts.insert(0, _start(grid_rings_kernel, grid.rings, x, dt, A, B, bias, weight, closing, handed))
    else:
        sequence = plan.sequence_forward(shape, keep_carries)
        kept = empty(sequence.kept)
        ends, span = empty(sequence.ends), empty(sequence.span)
        buffers = (y_part, kept, ends, span, empty(sequence.scratch))
        starts = [_start(sequence_forward_kernel, one, *tensors, *buffers) for one in (sequence.sweep, sequence.main)]
        if sequence.chunks == 1:
            later.append(starts.pop(0))  # which a longer sequence will need
    if not alone:
        starts.append(_start(sum_directions, plan.sum_of_directions(shape), y_part, y))
    if keep_carries and launching.is_new(starts):
        # What the backward will launch is compiled now, too: tensors that are there stand for those that it will have.
        needs_R = inputs.R is not None and inputs.R.requires_grad
        later += _backward_starts(x, inputs, shape, inputs.A, needs_R, inputs, lambda _: inputs.A, every=True)
    with torch.cuda.device_of(x):
        launching.launch_all(starts, f"the {shape.kind} scan", later)
    return y, kept


def backward(
    dy: torch.Tensor,
    inputs: ScanInputs,
    settings: ScanSettings,
    carries: torch.Tensor,
    needs_R: bool,
    *,
    in_rows: bool = False,
    _blocks: Blocks | None = None,
) -> ScanInputs:
    """The gradients of all inputs, in the inputs' precisions; of R only if asked for.

    in_rows: those of a low-rank dt, of B and of C are pieces of one tensor [B, H, W, K, r + 2N], side by side.
    """
    inputs = plan.packed(inputs, settings)
    shape = plan.shape_of(inputs, settings, _blocks)
    needs_R = needs_R and inputs.R is not None
    dy = dy.to(inputs.x.dtype).contiguous()  # as x and dx are
    if shape.kind == "2d" and shape.batch > (slice_ := plan.batch_slice(shape)):
        return _in_slices(dy, inputs, settings, carries, needs_R, _blocks, slice_)
    x, empty = inputs.x, inputs.A.new_empty  # float32, as every buffer is
    grads = ScanInputs._make([None if tensor is None else tensor.new_empty(tensor.shape) for tensor in inputs])
    if not needs_R:
        grads = grads._replace(R=None)
    if in_rows and shape.rank:
        widths = [shape.rank, shape.dstate, shape.dstate]
        rows = x.new_empty((*inputs.B.shape[:-1], sum(widths)))
        grads = grads._replace(**dict(zip(("dt", "B", "C"), rows.split(widths, dim=-1), strict=True)))
    starts = _backward_starts(dy, inputs, shape, carries, needs_R, grads, empty)
    with torch.cuda.device_of(x):
        launching.launch_all(starts, f"the {shape.kind} scan's gradients")
    return grads


def _backward_starts(
    dy: torch.Tensor,
    inputs: ScanInputs,
    shape: plan.Shape,
    carries: torch.Tensor,
    needs_R: bool,
    grads: ScanInputs,
    empty: Callable[[int], torch.Tensor],
    every: bool = False,
) -> list[launching.Start]:
    """The launches of a backward, with buffers from `empty`; `every`: and a sweep that only longer sequences need."""
    tensors = _tensors(inputs)
    dx_part = empty(len(shape.orders) * inputs.x.numel())
    x, dt, A, B, C, D, R, bias, weight = tensors
    dx, ddt, dA, dB, dC, dD, dR, dbias, dweight = _tensors(grads)
    if shape.kind == "2d":
        grid = plan.grid_backward(shape, needs_R)
        sums, over_channels, of_parameters = grid.sums, empty(grid.over_channels), empty(grid.of_parameters)
        hor, ver, back_ver, back_hor = (empty(size) for size in (grid.hor, grid.ver, grid.ver, grid.back_hor))
        handed, closing = empty(grid.handed), empty(grid.closing) if shape.rings else None
        states, adjoint = (x, dt, A, B, bias, weight), (dy, dt, A, C, bias, weight)
        edges = (hor, ver, back_ver, back_hor, empty(grid.scratch))
        outputs = (dx_part, ddt, over_channels, of_parameters)
        starts = [
            _start(grid_sweep_kernel, grid.states, *states, hor, ver, handed, closing),
            _start(grid_sweep_kernel, grid.adjoint, *adjoint, back_hor, back_ver, handed, closing),
            _start(grid_backward_kernel, grid.main, *tensors, dy, *edges, *outputs),
        ]
        if shape.rings:  # each in front of its sweep
            starts.insert(1, _start(grid_rings_kernel, grid.adjoint_rings, *adjoint, closing, handed))
            starts.insert(0, _start(grid_rings_kernel, grid.state_rings, *states, closing, handed))
    else:
        sequence = plan.sequence_backward(shape, needs_R)
        sums, over_channels, of_parameters = sequence.sums, empty(sequence.over_channels), empty(sequence.of_parameters)
        ends, span = empty(sequence.ends), empty(sequence.span)
        outputs = (dx_part, over_channels, of_parameters, ddt)
        kept = (carries, ends, span)
        starts = [
            _start(sequence_backward_kernel, sequence.main, *tensors, dy, *kept, *outputs, empty(sequence.scratch))
        ]
        if sequence.chunks > 1 or every:
            buffers = (dx_part, *kept, empty(sequence.sweep_scratch))
            swept = (dy, dt, A, C, C, D, R, bias, weight)
            starts.insert(0, _start(sequence_forward_kernel, sequence.sweep, *swept, *buffers))
    partials = (dx_part, over_channels, of_parameters)
    summed = (dx, dB, dC, ddt, dA, dR, dD, dbias, dweight)
    starts.append(_start(sum_gradients, plan.sums_to(sums, ddt, dB, dC), *partials, *summed))
    return starts


def _in_slices(
    dy: torch.Tensor,
    inputs: ScanInputs,
    settings: ScanSettings,
    carries: torch.Tensor,
    needs_R: bool,
    blocks: Blocks | None,
    size: int,
) -> ScanInputs:
    """Some samples at a time: the edges of all tiles of a large batch would take more memory than everything else."""
    found = []
    for first in range(0, dy.shape[0], size):
        part = slice(first, first + size)
        some = inputs._replace(x=inputs.x[part], dt=inputs.dt[part], B=inputs.B[part], C=inputs.C[part])
        found.append(backward(dy[part], some, settings, carries, needs_R, _blocks=blocks))
    samples = {name: torch.cat([getattr(one, name) for one in found]) for name in ("x", "dt", "B", "C")}
    parameters: dict[str, Any] = {
        name: None if getattr(found[0], name) is None else torch.stack([getattr(one, name) for one in found]).sum(0)
        for name in ("A", "D", "R", "dt_bias", "dt_weight")
    }
    return ScanInputs(**samples, **parameters)


def _tensors(inputs: ScanInputs) -> tuple[torch.Tensor, ...]:
    """In the kernels' order. What is not there is a pointer that a kernel without this term never follows."""
    return tuple(inputs.A if tensor is None else tensor for tensor in inputs)


def _start(kernel: Any, one: plan.Launch, *tensors: torch.Tensor | None) -> launching.Start:
    return launching.Start(kernel, one.grid, (*tensors, *one.integers), one.constants)
