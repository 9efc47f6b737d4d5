"""Races of Triton kernels, found while the interpreter runs them.

Every address that a launch loads or stores is followed, by program and, inside a program, by thread:

    between programs   one address that two programs touch, of which one writes, is a race: nothing orders programs
    inside a program   what a thread stored, another thread may load, or store with another value, only after a barrier
                       (`tl.debug_barrier`), and what a thread loaded, another thread may store only after a barrier

The interpreter has no threads, so each element of an access gets the thread that Triton's layout gives it. Which layout
that is says `layouts` (`access_layouts.py` asks the compiler); without, the default layout is taken, and a load of
fewer elements than the program has threads counts as made by all of them, since the compiler may repeat it anywhere.
With `in_step` the threads of a warp count as one, as GPUs run them while they do not diverge, which none promises: for
tests with blocks of fewer channels than a warp has lanes, where lanes hold and hand over the same channel.

A fault is raised as RaceError once the launch is over. Atomics are a fault: their order is not ours.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import triton
from triton.runtime import interpreter

from geomano_hpc.kernels.audit.races.memory import CheckedLaunch, Layouts, Place, RaceError

_TRITON = str(Path(triton.__file__).parent)


@contextmanager
def checked(layouts: Layouts | None = None, lanes: int = 32, in_step: bool = False) -> Iterator[list[str]]:
    """Check every launch inside the block. Gives the names of the kernels that were checked, in their order."""
    launched: list[str] = []
    current: list[CheckedLaunch] = []
    builder, call = interpreter.InterpreterBuilder, interpreter.GridExecutor.__call__
    load, store, barrier = builder.create_masked_load, builder.create_masked_store, builder.create_barrier
    set_program = builder.set_grid_idx

    def checked_call(self: Any, *arguments: Any, **options: Any) -> None:
        named = {**dict(zip(self.arg_names, arguments, strict=False)), **options}
        launch = CheckedLaunch(self.fn, named, lanes, layouts, in_step)
        current.append(launch)
        try:
            call(self, *arguments, **options)
        except interpreter.InterpreterError as error:  # which wraps what a kernel raises
            raise error.__cause__ if isinstance(error.__cause__, RaceError) else error from None
        finally:
            current.pop()
        launched.append(launch.name)
        launch.judge()

    def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        if current:
            current[-1].access(_place(), pointers, mask, None)
        return load(self, pointers, mask, *rest, **options)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        if current:
            current[-1].access(_place(), pointers, mask, value)
        return store(self, pointers, value, mask, *rest, **options)

    def checked_barrier(self: Any, *rest: Any, **options: Any) -> Any:
        if current:
            current[-1].epoch += 1
        return barrier(self, *rest, **options)

    def checked_program(self: Any, x: int, y: int, z: int) -> None:
        set_program(self, x, y, z)
        if current:
            current[-1].begin(self.grid_idx)

    def atomic(self: Any, *_: Any, **__: Any) -> None:
        raise RaceError("an atomic operation: its order changes from run to run")

    with ExitStack() as stack:
        for owner, name, function in (
            (interpreter.GridExecutor, "__call__", checked_call),
            (builder, "create_masked_load", checked_load),
            (builder, "create_masked_store", checked_store),
            (builder, "create_barrier", checked_barrier),
            (builder, "set_grid_idx", checked_program),
            (builder, "create_atomic_rmw", atomic),
            (builder, "create_atomic_cas", atomic),
        ):
            stack.enter_context(patch.object(owner, name, function))
        yield launched


@contextmanager
def random_order(seed: int) -> Iterator[None]:
    """Programs of a launch run in an order by lot."""
    builder = interpreter.InterpreterBuilder
    set_size, set_program = builder.set_grid_dim, builder.set_grid_idx
    generator = np.random.default_rng(seed)
    drawn: list[Iterator[int]] = []

    def shuffled_size(self: Any, x: int, y: int, z: int) -> None:
        set_size(self, x, y, z)
        drawn[:] = [iter(generator.permutation(x * y * z).tolist())]

    def shuffled_program(self: Any, *_: int) -> None:
        set_program(self, *(int(i) for i in np.unravel_index(next(drawn[0]), self.grid_dim)))

    with patch.object(builder, "set_grid_dim", shuffled_size), patch.object(builder, "set_grid_idx", shuffled_program):
        yield


def assert_same_bits_in_any_order(run: Callable[[], Any], seeds: tuple[int, ...] = (1, 2)) -> None:
    """`run` launches kernels and gives tensors. With programs in other orders it gives the same bits."""
    results = []
    for seed in seeds:
        with random_order(seed):
            results.append(run())
    for result in results[1:]:
        for index, (one, other) in enumerate(zip(_tensors(results[0]), _tensors(result), strict=True)):
            if not np.array_equal(_bits(one), _bits(other)):
                raise RaceError(f"result {index} depends on the order of the programs")


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [] if result is None else list(itertools.chain.from_iterable(map(_tensors, result)))


def _bits(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()


def _place() -> Place:
    """The line of the kernel, or of a function that it calls, in which the interpreter is."""
    frame = sys._getframe(2)  # of whoever called the load or store that is followed here
    while frame.f_code.co_filename.startswith(_TRITON) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
