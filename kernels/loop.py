"""The recurrence as one loop of torch's graph, which exporters write down as such: a `Scan` of ONNX.

Traced step by step it would be a graph of thousands of nodes. For export only: outside of it torch compiles every loop.
"""

import torch


def loop_recurrence(a: torch.Tensor, b: torch.Tensor, axis: int) -> torch.Tensor:
    """h[t] = a[t] h[t-1] + b[t] along an axis."""
    from torch._higher_order_ops.scan import scan  # a prototype of torch's, imported where it is needed

    # One layout in every step, and no views: of views torch looks at their bases, which are not there in an export.
    a, b = (tensor.movedim(axis, 0).clone(memory_format=torch.contiguous_format) for tensor in (a, b))
    _, h = scan(_step, torch.zeros_like(b[0]), (a, b), dim=0)
    states: torch.Tensor = h.movedim(0, axis)
    return states


def _step(before: torch.Tensor, given: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = given
    h = torch.addcmul(b, a, before)
    return h, h.clone()  # the state and what is kept of it may not be one tensor
