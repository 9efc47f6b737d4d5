"""A run at a pace: each step waits so many seconds, so that a test finds it in mid-training without burning the cores.
As soon as the file FULL_SPEED is there, no step waits any more.

Python imports this file by itself at its start where its folder is on PYTHONPATH. The numbers of the run do not change.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import time
from types import ModuleType
from typing import Any


class SlowEngine(importlib.abc.MetaPathFinder):
    """Finds the module of the training engine as usual, and changes its `step` when it is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "geomano_hpc.training.engines.engine":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            step = module.Engine.step

            def slow_step(*arguments: Any) -> Any:
                if not os.path.exists(os.environ["FULL_SPEED"]):  # noqa: PTH110 (few imports, in every process)
                    time.sleep(float(os.environ["SECONDS_PER_STEP"]))
                return step(*arguments)

            module.Engine.step = slow_step

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "SECONDS_PER_STEP" in os.environ:
    sys.meta_path.insert(0, SlowEngine())
