"""The scan as one operator of torch: `torch.ops.geomano_hpc.geo_scan` with its gradient, its shapes for torch.compile
and torch.export, and its rule under autocast. Backends compute it; `geo_scan` in scan.py is what people call.

The backend is chosen where the operator runs: an exported model that says `auto` takes the best one of its machine.
"""

from collections.abc import Sequence
from typing import Any

import torch

from geomano_hpc.kernels.autocast import without_autocast
from geomano_hpc.kernels.backends import choose_backend, load_backend
from geomano_hpc.kernels.inputs import ScanInputs, ScanSettings, state_dtype
from geomano_hpc.kernels.orders import ScanOrder
from geomano_hpc.kernels.rows import joined

NAME = "geomano_hpc::geo_scan"


def _settings(
    orders: Sequence[int],
    kind: str,
    correction: str,
    stretch: float = 1.0,
    rings: int = 0,
    own_H: float = 0.0,
    own_W: float = 0.0,
    hold_H: float = 0.0,
    hold_W: float = 0.0,
) -> ScanSettings:
    """`rings`: 1 for an axis H that is periodic, and 2 for an axis W. Holds of 0: there is none."""
    turned = tuple(ScanOrder.from_code(code) for code in orders)
    hold = (hold_H, hold_W) if hold_H else None
    return ScanSettings(turned, kind, correction, stretch, (bool(rings & 1), bool(rings & 2)), (own_H, own_W), hold)


def geometry(settings: ScanSettings) -> tuple[float | int, ...]:
    """The settings that the operators take last, in their order."""
    rings = settings.periodic[0] + 2 * settings.periodic[1]
    return (settings.stretch, rings, *settings.own, *(settings.hold or (0.0, 0.0)))


@torch.library.custom_op(NAME, mutates_args=())
def geo_scan_op(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    R: torch.Tensor | None,
    dt_bias: torch.Tensor,
    dt_weight: torch.Tensor | None,
    orders: Sequence[int],
    kind: str,
    correction: str,
    backend: str,
    keep_carries: bool,
    stretch: float = 1.0,
    rings: int = 0,
    own_H: float = 0.0,
    own_W: float = 0.0,
    hold_H: float = 0.0,
    hold_W: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """y and the carries that the backward starts from, which are empty unless they are to be kept."""
    inputs = ScanInputs(x, dt, A, B, C, D, R, dt_bias, dt_weight)
    settings = _settings(orders, kind, correction, stretch, rings, own_H, own_W, hold_H, hold_W)
    return load_backend(backend, x.device.type).forward(inputs, settings, keep_carries)


@geo_scan_op.register_fake
def _(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    count = len(ScanInputs._fields)
    inputs = ScanInputs._make(arguments[:count])
    orders, kind, correction, backend, keep_carries, *geometry = arguments[count:]
    settings = _settings(orders, kind, correction, *geometry)
    size = load_backend(backend, inputs.x.device.type).carries_size(inputs, settings) if keep_carries else 0
    return torch.empty_like(inputs.x, memory_format=torch.contiguous_format), inputs.A.new_empty(size)


@torch.library.custom_op(f"{NAME}_backward", mutates_args=())
def geo_scan_backward_op(
    dy: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    R: torch.Tensor | None,
    dt_bias: torch.Tensor,
    dt_weight: torch.Tensor | None,
    carries: torch.Tensor,
    orders: Sequence[int],
    kind: str,
    correction: str,
    backend: str,
    needs_R: bool,
    in_rows: bool = False,
    stretch: float = 1.0,
    rings: int = 0,
    own_H: float = 0.0,
    own_W: float = 0.0,
    hold_H: float = 0.0,
    hold_W: float = 0.0,
) -> list[torch.Tensor]:
    """The gradients in the order of ScanInputs, without those of inputs that are None and of an R that needs none.

    in_rows: those of dt, B and C come as one tensor [B, H, W, K, r + 2N], in the place of dt's. An operator's results
    must not share memory, so it has no views of it to give.
    """
    inputs = ScanInputs(x, dt, A, B, C, D, R, dt_bias, dt_weight)
    settings = _settings(orders, kind, correction, stretch, rings, own_H, own_W, hold_H, hold_W)
    module = load_backend(backend, x.device.type)
    expected = module.carries_size(inputs, settings)
    if carries.numel() != expected:
        raise ValueError(f"geo_scan_backward: {carries.numel()} carries, expected {expected} from the forward")
    side_by_side = {"in_rows": True} if in_rows else {}  # which only the triton backend knows
    grads = module.backward(dy, inputs, settings, carries, needs_R, **side_by_side)
    found = [grad for grad in grads if grad is not None]
    if not in_rows:
        return found
    pieces = [grads.dt, grads.B, grads.C]
    rows = joined(pieces)
    return _with_rows(torch.cat(pieces, dim=-1) if rows is None else rows, found)


@geo_scan_backward_op.register_fake
def _(dy: torch.Tensor, *arguments: Any) -> list[torch.Tensor]:
    count = len(ScanInputs._fields)
    inputs = ScanInputs._make(arguments[:count])
    needs_R, *in_rows = arguments[count + 5 : count + 7]
    tensors = inputs if needs_R else inputs._replace(R=None)
    found = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors if t is not None]
    return _with_rows(torch.cat([inputs.dt, inputs.B, inputs.C], dim=-1), found) if any(in_rows) else found


def _with_rows(rows: torch.Tensor, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """x, the rows, A, and what comes after B and C."""
    return [found[0], rows, found[2], *found[5:]]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    count = len(ScanInputs._fields)
    tensors = inputs[:count]
    orders, kind, correction, backend, keep_carries, *geometry = inputs[count:]
    if not keep_carries:
        raise ValueError("geo_scan: a scan that needs gradients must keep its carries (keep_carries=True)")
    ctx.save_for_backward(*tensors, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # else the carries, which have none, get zeros of their size
    ctx.settings = (orders, kind, correction, backend)
    ctx.geometry = geometry


def _backward(ctx: Any, dy: torch.Tensor | None, _: Any) -> tuple[torch.Tensor | None, ...]:
    *tensors, carries = ctx.saved_tensors
    if dy is None:
        return (None,) * (len(tensors) + len(_OPTIONS))
    R = ScanInputs._fields.index("R")
    needs_R = tensors[R] is not None and ctx.needs_input_grad[R]
    inputs = ScanInputs._make(tensors)
    in_rows = (
        choose_backend(ctx.settings[-1], dy.device.type) == "triton"
        and joined([inputs.dt, inputs.B, inputs.C]) is not None
    )
    with without_autocast(dy.device.type):
        gradients = geo_scan_backward_op(dy, *tensors, carries, *ctx.settings, needs_R, in_rows, *ctx.geometry)
    if in_rows:
        dx, rows, dA, *others = gradients
        ddt, dB, dC = rows.split([inputs.dt.shape[-1], inputs.B.shape[-1], inputs.C.shape[-1]], dim=-1)
        gradients = [dx, ddt, dA, dB, dC, *others]
    found = iter(gradients)
    grads = [None if t is None or (i == R and not needs_R) else next(found) for i, t in enumerate(tensors)]
    return (*grads, *[None] * len(_OPTIONS))


geo_scan_op.register_autograd(_backward, setup_context=_save_for_backward)


def _under_autocast(device: str) -> None:
    """Activations in autocast's precision, parameters and hidden states in float32."""

    def cast(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        tensors = ScanInputs(*arguments[: len(ScanInputs._fields)])
        double = tensors.x.dtype == torch.float64  # which autocast leaves alone
        dtype = torch.float64 if double else torch.get_autocast_dtype(device)
        activations = {name: getattr(tensors, name).to(dtype) for name in ("x", "dt", "B", "C")}
        parameters = {
            name: None if tensor is None else tensor.to(state_dtype(dtype))
            for name, tensor in tensors._asdict().items()
            if name not in activations
        }
        with torch.autocast(device, enabled=False):
            options = zip(_OPTIONS, arguments[len(ScanInputs._fields) :], strict=False)  # the geometry has defaults
            return geo_scan_op(**activations, **parameters, **dict(options))

    torch.library.impl(NAME, f"Autocast{device.upper()}")(cast)


_GEOMETRY = ("stretch", "rings", "own_H", "own_W", "hold_H", "hold_W")
_OPTIONS = ("orders", "kind", "correction", "backend", "keep_carries", *_GEOMETRY)
for _device in ("cpu", "cuda"):
    _under_autocast(_device)
