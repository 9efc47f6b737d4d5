"""The one place where Triton kernels start: tests, the audit and the count of launches listen here."""

import threading
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
        self.compiled: dict[Any, tuple[Any, tuple[Any, ...]]] = {}  # by GPU: the kernel, and its constants in order
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
    with _FIRST:  # Triton loads a kernel at its first launch, and not safely from two threads
        compiled = kernel[grid](*arguments, **constants)
    # The interpreter compiles nothing; for AMD the compiler looks at the sizes of tensors too.
    if kept and compiled is not None and torch.version.hip is None:
        fixed = tuple(constants[parameter.name] for parameter in kernel.params[len(arguments) :])
        constants.compiled[_device()] = compiled, fixed  # type: ignore[attr-defined]


_LAUNCH = launch
_FIRST = threading.Lock()


def _device() -> Any:
    from triton.runtime import driver

    return driver.active.get_current_device()


def is_new(several: Sequence[Start]) -> bool:
    """Whether something of these has not been compiled here."""
    return any(type(one.constants) is Fixed and not one.constants.prepared for one in several)


def launch_all(several: Sequence[Start], why: str, later: Sequence[Start] = ()) -> None:
    """Start kernels one after the other. What is new of them, and of those that come `later`, is compiled first, side
    by side, and by one process of a machine only (first_use). `why` is for people."""
    # Where somebody listens, and in the interpreter, nothing is compiled.
    if launch is _LAUNCH and is_new(several) and not first_use.interpreted():
        _prepare([one for one in (*several, *later) if is_new([one])], why)
    for one in several:
        launch(*one)


def _prepare(new: Sequence[Start], why: str) -> None:
    new = sorted(new, key=lambda one: -len(one.kernel.src))  # the longest first, so that all threads end together
    key = "; ".join(f"{one.kernel.__name__} {sorted(one.constants.items())} {_types(one.arguments)}" for one in new)
    with first_use.compiled_once(key, why):
        first_use.prepare(first_use.Launch(one.kernel, one.arguments, dict(one.constants)) for one in new)
    for one in new:
        one.constants.prepared = True  # type: ignore[attr-defined]


def _types(arguments: tuple[Any, ...]) -> list[str]:
    return [str(one.dtype) for one in arguments if isinstance(one, torch.Tensor)]
