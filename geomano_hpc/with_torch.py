"""The package's operators are known to torch wherever both are imported, in either order.

An exported model (`geomano export`) calls them by name, so that loading it must find them. `import geomano_hpc` loads
no torch for that: the operators follow at once if torch is there already, else as soon as somebody imports it.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

_KERNELS = "geomano_hpc.kernels"


def register_operators() -> None:
    if "torch" in sys.modules:
        _load_kernels()
    else:
        sys.meta_path.insert(0, _AfterTorch())


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch as it would be found without this, and loads the kernels behind it. Many ask for a module's spec only
    to learn whether it is installed: this stays until torch is really loaded."""

    def __init__(self) -> None:
        self._asking_the_others = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch" or self._asking_the_others:
            return None
        self._asking_the_others = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking_the_others = False
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                sys.meta_path.remove(self)
                del loader.exec_module  # the loader's own again
                execute(module)
                _load_kernels()

            loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def _load_kernels() -> None:
    if _KERNELS not in sys.modules:  # else they are being imported: it is they who have asked for torch
        importlib.import_module(_KERNELS)
