"""The one place where Triton kernels start: tests, the audit and the count of launches listen here."""

from typing import Any


def launch(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
    """Start a kernel. `arguments` are all that are no constexpr, in the kernel's order; `constants` are its constexprs
    with num_warps and num_stages, a dict that is made once per shape and shared by all calls.

    Called as `launching.launch(...)`, so that whoever listens replaces it here.
    """
    kernel[grid](*arguments, **constants)
