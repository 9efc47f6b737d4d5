"""How many kernels a GPU would start, counted without one: what torch dispatches on meta tensors, and what our
operators hand to `launching.launch`.

An operator of torch counts once: matrix products, sums and elementwise operators are one kernel each. Views, and memory
that is asked for, start none. Operators of ours are opened: their host side runs on the meta tensors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from geomano_hpc.kernels import dense_operators, operator

_OPENED = {
    definition._opoverload: definition._init_fn
    for module in (operator, dense_operators)
    for definition in vars(module).values()
    if isinstance(definition, torch.library.CustomOpDef)
}
_MEMORY_ONLY = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "detach", "set_",
    "resize_",
}  # fmt: skip
# What makes the host wait for the GPU: numbers of a tensor, or sizes that depend on them.
_WAITING = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "unique_consecutive", "_unique2",
    "unique_dim", "repeat_interleave", "bincount", "_assert_async",
}  # fmt: skip


class LaunchCounter(TorchDispatchMode):
    """The kernels that start inside it, by name, in order, and what the host would wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[str] = []
        self.waits: list[str] = []

    def __torch_dispatch__(self, function: Any, _types: Any, arguments: Any = (), options: Any = None) -> Any:
        options = options or {}
        name = function.overloadpacket.__name__
        if function in _OPENED:
            with self, self._listening():
                return _OPENED[function](*arguments, **options)
        if name in _WAITING or _reads_back(name, arguments, options):
            self.waits.append(name)
        if not function.is_view and name not in _MEMORY_ONLY:
            self.launches.append(name)
        return function(*arguments, **options)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Kernels of ours are noted instead of started."""
        from geomano_hpc.kernels.triton import launching

        launch = launching.launch
        launching.launch = lambda kernel, *_: self.launches.append(kernel.__name__)
        try:
            yield
        finally:
            launching.launch = launch


def _reads_back(name: str, arguments: Any, options: Any) -> bool:
    """A copy to the host, or an index that is a mask, whose true elements torch counts first."""
    if name == "_to_copy":
        return torch.device(options.get("device") or arguments[0].device).type == "cpu" != arguments[0].device.type
    if name in ("index", "index_put", "index_put_"):
        return any(index is not None and index.dtype == torch.bool for index in arguments[1])
    return name == "copy_" and arguments[0].device.type == "cpu" != arguments[1].device.type
