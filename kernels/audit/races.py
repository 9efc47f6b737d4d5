"""Races of Triton kernels, found while the interpreter runs them.

Every address that a launch loads or stores is followed, by program and, inside a program, by thread:

    between programs   one address that two programs touch, of which one writes, is a race: nothing orders programs
    inside a program   what a thread stored, another thread may load, or store with another value, only after a barrier
                       (`tl.debug_barrier`), and what a thread loaded, another thread may store only after a barrier

The interpreter has no threads, so each element of an access gets the thread that Triton's layout gives it. Which layout
that is says `layouts` (see `layouts.py`, which asks the compiler); without, the default layout is taken, and a load of
fewer elements than the program has threads counts as made by all of them, since the compiler may repeat it anywhere.

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

from geomano_hpc.kernels.audit.threads import MANY, default_layout, holders

_TRITON = str(Path(triton.__file__).parent)
_DEFAULT_WARPS = 4  # Triton's
_LIMIT = 5  # faults of a launch that are told

Place = tuple[str, int]  # file and line of a load or store
# Of a kernel by name, its num_warps and constants: the layouts that an access at a place with a shape may have.
Layouts = Callable[[Any, dict[str, Any]], Callable[[Place, tuple[int, ...], bool], tuple[np.ndarray, bool] | None]]


class RaceError(AssertionError):
    """Two accesses of one address that nothing orders."""


@contextmanager
def checked(layouts: Layouts | None = None, lanes: int = 32) -> Iterator[list[str]]:
    """Check every launch inside the block. Gives the names of the kernels that were checked, in their order."""
    launched: list[str] = []
    current: list[_Launch] = []
    builder, call = interpreter.InterpreterBuilder, interpreter.GridExecutor.__call__
    load, store, barrier = builder.create_masked_load, builder.create_masked_store, builder.create_barrier
    set_program = builder.set_grid_idx

    def checked_call(self: Any, *arguments: Any, **options: Any) -> None:
        named = {**dict(zip(self.arg_names, arguments, strict=False)), **options}
        launch = _Launch(self.fn, named, lanes, layouts)
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
            current[-1].access(pointers, mask, None)
        return load(self, pointers, mask, *rest, **options)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        if current:
            current[-1].access(pointers, mask, value)
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


class _Launch:
    """Who touched what, for each cell of memory that the arguments of a launch own."""

    def __init__(self, function: Any, arguments: dict[str, Any], lanes: int, layouts: Layouts | None) -> None:
        self.name: str = function.__name__
        self.warps, self.lanes = int(arguments.get("num_warps", _DEFAULT_WARPS)), lanes
        self.known = layouts(function, arguments) if layouts else None
        self.program, self.programs = -1, dict[int, tuple[int, ...]]()
        self.epoch = 0  # of a barrier, or the start of a program
        self.faults: list[str] = []
        self.places: dict[Place, int] = {}
        self.owners: dict[Any, tuple[np.ndarray, bool]] = {}
        self.tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
        self._lay_out_memory()

    def _lay_out_memory(self) -> None:
        """One cell for each element of the arguments' storages; a storage with several types has the smallest."""
        storages: dict[int, tuple[int, int]] = {}
        for tensor in self.tensors.values():
            storage = tensor.untyped_storage()
            _, item = storages.get(storage.data_ptr(), (0, 8))
            storages[storage.data_ptr()] = (storage.nbytes(), min(item, tensor.element_size()))
        self.starts = np.array(sorted(storages), np.int64)
        sizes, items = (np.array([storages[int(s)][i] for s in self.starts], np.int64) for i in (0, 1))
        self.ends, self.items = self.starts + sizes, items
        cells = -(-sizes // items)
        self.first_cell = np.concatenate([[0], np.cumsum(cells)[:-1]]) if len(cells) else cells
        total = int(cells.sum())
        self.writer, self.reader = (np.full(total, -1, np.int32) for _ in range(2))  # programs
        self.stored_in, self.loaded_in = (np.full(total, -1, np.int32) for _ in range(2))  # epochs
        self.stored_by, self.loaded_by = (np.empty(total, np.int32) for _ in range(2))  # threads
        self.stored_at, self.loaded_at = (np.empty(total, np.int32) for _ in range(2))  # places

    def begin(self, index: tuple[int, ...]) -> None:
        self.program += 1
        self.programs[self.program] = tuple(index)
        self.epoch += 1

    def access(self, pointers: Any, mask: Any, value: Any) -> None:
        shape = pointers.data.shape
        place = _place()
        threads, several = self._threads(shape, place, value is not None)
        inside = np.broadcast_to(mask.data.astype(bool), shape).ravel()
        addresses = pointers.data.ravel()[inside].astype(np.int64)
        if not addresses.size:
            return
        thread = (
            threads.ravel()[inside] if not several or value is not None else np.full(len(addresses), MANY, np.int32)
        )
        item = pointers.get_element_ty().primitive_bitwidth // 8
        storage = np.searchsorted(self.starts, addresses, "right") - 1
        outside = (storage < 0) | (addresses + max(item, 1) > self.ends[storage])
        if outside.any():
            raise RaceError(f"{_say(place)} touches memory of no argument")
        cell = self.first_cell[storage] + (addresses - self.starts[storage]) // self.items[storage]
        pieces = max(1, item // int(self.items[storage[0]]))
        if pieces > 1:
            cell, thread = (cell[:, None] + np.arange(pieces)).ravel(), np.repeat(thread, pieces)
        number = self.places.setdefault(place, len(self.places))
        if value is None:
            self._loaded(cell, thread, number)
        else:
            data = np.broadcast_to(value.data, shape).ravel()[inside]
            self._stored(cell, thread, number, addresses, data, pieces)

    def _threads(self, shape: tuple[int, ...], place: Place, stores: bool) -> tuple[np.ndarray, bool]:
        key = (shape, place, stores) if self.known else (shape, stores)
        if key not in self.owners:
            found = self.known(place, shape, stores) if self.known else None
            self.owners[key] = found or self._default(shape)
        return self.owners[key]

    def _default(self, shape: tuple[int, ...]) -> tuple[np.ndarray, bool]:
        if not shape:
            return np.zeros((), np.int32), self.warps * self.lanes > 1
        owners, several = holders(shape, default_layout(shape, self.warps, self.lanes))
        return owners, several or owners.size < self.warps * self.lanes

    def _loaded(self, cell: np.ndarray, thread: np.ndarray, place: int) -> None:
        self._complain(cell, self._others(self.writer[cell]), place, "loaded", "stored", self.writer)
        handed = (self.stored_in[cell] == self.epoch) & ((self.stored_by[cell] != thread) | (thread == MANY))
        self._complain(cell, handed, place, "loaded", "stored", None, self.stored_at)
        reader = self.reader[cell]
        self.reader[cell] = np.where((reader == -1) | (reader == self.program), self.program, MANY)
        again = (self.loaded_in[cell] == self.epoch) & (self.loaded_by[cell] != thread)
        self.loaded_by[cell] = np.where(again, MANY, thread)
        differs = self.loaded_by[cell] != thread  # two threads in one load, or one before
        self.loaded_by[cell[differs]] = MANY
        self.loaded_in[cell], self.loaded_at[cell] = self.epoch, place

    def _stored(
        self, cell: np.ndarray, thread: np.ndarray, place: int, addresses: np.ndarray, data: np.ndarray, pieces: int
    ) -> None:
        self._complain(cell, self._others(self.writer[cell]), place, "stored", "stored", self.writer)
        self._complain(cell, self._others(self.reader[cell]), place, "stored", "loaded", self.reader)
        early = (self.loaded_in[cell] == self.epoch) & ((self.loaded_by[cell] != thread) | (thread == MANY))
        self._complain(cell, early, place, "stored", "loaded", None, self.loaded_at)
        twice = (self.stored_in[cell] == self.epoch) & (self.stored_by[cell] != thread)
        if twice.any():
            old = interpreter._interpreter.load(addresses.astype(np.uint64), np.ones(len(data), bool), data, data.dtype)
            changed = np.repeat(_as_integers(old) != _as_integers(data), pieces)
            self._complain(cell, twice & changed, place, "stored", "stored", None, self.stored_at)
        self.writer[cell] = self.program
        self.stored_by[cell] = np.arange(len(cell))  # the last of several elements at one address
        last = self.stored_by[cell]
        self.stored_by[cell] = np.where(twice, MANY, thread)
        repeated = last != np.arange(len(cell))
        if repeated.any():
            bits = np.repeat(_as_integers(data), pieces)
            self._complain(cell, repeated & (bits != bits[last]), place, "stored", "stored in the same store", None)
            self.stored_by[cell[repeated & (thread != thread[last])]] = MANY
        self.stored_in[cell], self.stored_at[cell] = self.epoch, place

    def _others(self, programs: np.ndarray) -> np.ndarray:
        return (programs != -1) & (programs != self.program)

    def _complain(
        self, cell: np.ndarray, wrong: np.ndarray, place: int, verb: str, before: str,
        programs: np.ndarray | None, places: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        if not wrong.any() or len(self.faults) >= _LIMIT:
            return
        first = int(cell[np.argmax(wrong)])
        where = _say(list(self.places)[place])
        what = f"{self.name}: {int(wrong.sum())} elements of {self._argument(first)} {verb} at {where} by program"
        what += f" {self.programs[self.program]}"
        if programs is not None:
            other = int(programs[first])
            by = "several others" if other == MANY else f"program {self.programs[other]}"
            self.faults.append(f"{what} and {before} by {by}")
            return
        earlier = f" at {_say(list(self.places)[int(places[first])])}" if places is not None else ""
        self.faults.append(f"{what} were {before}{earlier} by another thread of it, with no barrier in between")

    def _argument(self, cell: int) -> str:
        storage = int(np.searchsorted(self.first_cell, cell, "right")) - 1
        address = int(self.starts[storage] + (cell - self.first_cell[storage]) * self.items[storage])
        names = [name for name, tensor in self.tensors.items() if _spans(tensor, address)]
        return " or ".join(names) or "no argument's own part"

    def judge(self) -> None:
        if self.faults:
            raise RaceError("; ".join(dict.fromkeys(self.faults)))


def _spans(tensor: torch.Tensor, address: int) -> bool:
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr() <= address < tensor.data_ptr() + (steps + 1) * tensor.element_size()


def _as_integers(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(f"u{values.itemsize}")


def _place() -> Place:
    """The line of the kernel, or of a function that it calls, in which the interpreter is."""
    frame = sys._getframe(3)  # of whoever called the load or store that is followed here
    while frame.f_code.co_filename.startswith(_TRITON) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _say(place: Place) -> str:
    return f"{Path(place[0]).name}:{place[1]}"
