"""The one place where Triton kernels start: tests, the audit and the count of launches listen here."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from geomano_hpc.kernels.triton import first_use


class Fixed(dict[str, Any]):
    """Constants of launches whose arguments have the same types every time, and are not specialised by value or
    alignment. So what the first launch compiled serves all later ones: Triton's own look at thirty arguments, which
    takes longer than the launch itself, is spared.
    """

    def __init__(self, **constants: Any) -> None:
        super().__init__(constants)
        self.compiled: dict[int, tuple[Any, tuple[Any, ...]]] = {}  # by GPU: the kernel, and its constants in order
        self.prepared = False


class Start(NamedTuple):
    """A kernel with everything it takes; `arguments` are all that are no constexpr, in the kernel's order."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]


def launch(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
    """Start a kernel. `constants` are its constexprs with num_warps and the like, a dict that is made once per shape
    and shared by all calls.

    Called as `launching.launch(...)`, so that whoever listens replaces it here.
    """
    kept = type(constants) is Fixed
    if kept and constants.compiled:  # type: ignore[attr-defined]
        known = constants.compiled.get(_device())  # type: ignore[attr-defined]
        if known is not None:
            compiled, fixed = known
            compiled[grid](*arguments, *fixed)
            return
    compiled = kernel[grid](*arguments, **constants)
    # The interpreter compiles nothing; for AMD the compiler looks at the sizes of tensors too.
    if kept and compiled is not None and torch.version.hip is None:
        fixed = tuple(constants[parameter.name] for parameter in kernel.params[len(arguments) :])
        constants.compiled[_device()] = compiled, fixed  # type: ignore[attr-defined]


_LAUNCH = launch


def _device() -> int:
    from triton.runtime import driver

    return int(driver.active.get_current_device())


def launch_all(several: Sequence[Start], why: str) -> None:
    """Start kernels one after the other. What is new of them is compiled first, side by side, and by one process of a
    machine only (first_use). `why` is for people."""
    if launch is _LAUNCH:  # else somebody listens, and nothing is compiled
        new = [one for one in several if type(one.constants) is Fixed and not one.constants.prepared]
        if new:
            _prepare(new, why)
    for one in several:
        launch(*one)


def _prepare(new: Sequence[Start], why: str) -> None:
    key = "; ".join(f"{one.kernel.__name__} {sorted(one.constants.items())} {_types(one.arguments)}" for one in new)
    with first_use.compiled_once(key, why):
        first_use.prepare(first_use.Launch(one.kernel, one.arguments, dict(one.constants)) for one in new)
    for one in new:
        one.constants.prepared = True  # type: ignore[attr-defined]


def _types(arguments: tuple[Any, ...]) -> list[str]:
    return [str(one.dtype) for one in arguments if isinstance(one, torch.Tensor)]
