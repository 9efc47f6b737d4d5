"""The memory of one launch that is checked for races (`check.py`): who touched each cell, and when."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter

from geomano_hpc.kernels.audit.races.threads import MANY, Holders, default_layout, holders

_DEFAULT_WARPS = 4  # Triton's
_LIMIT = 5  # faults of a launch that are told

Place = tuple[str, int]  # file and line of a load or store
# Of a kernel with its arguments: who holds the elements of an access at a place, with a shape, which stores or loads.
Layouts = Callable[[Any, dict[str, Any]], Callable[[Place, tuple[int, ...], bool], Holders]]


class RaceError(AssertionError):
    """Two accesses of one address that nothing orders."""


class CheckedLaunch:
    """Who touched what, for each cell of memory that the arguments of a launch own. Programs come one by one."""

    def __init__(
        self, function: Any, arguments: dict[str, Any], lanes: int, layouts: Layouts | None, in_step: bool
    ) -> None:
        self.name: str = function.__name__
        self.warps, self.lanes = int(arguments.get("num_warps", _DEFAULT_WARPS)), lanes
        self.in_step = in_step
        self.known = layouts(function, arguments) if layouts else None
        self.program, self.programs = -1, dict[int, tuple[int, ...]]()
        self.epoch = 0  # of a barrier, or the start of a program
        self.faults: list[str] = []
        self.places: dict[Place, int] = {}
        self.agents: dict[Any, np.ndarray] = {}
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

    def access(self, place: Place, pointers: Any, mask: Any, value: Any) -> None:
        shape = pointers.data.shape
        agents = self._agents(shape, place, value is not None)
        inside = np.broadcast_to(mask.data.astype(bool), shape).ravel()
        addresses = pointers.data.ravel()[inside].astype(np.int64)
        if not addresses.size:
            return
        thread = agents.ravel()[inside]
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

    def _agents(self, shape: tuple[int, ...], place: Place, stores: bool) -> np.ndarray:
        """Who makes each element of an access: a thread (a warp, if its threads are in step), or many."""
        key = (shape, place if self.known else None, stores)
        if key not in self.agents:
            first, lanes, warps = self.known(place, shape, stores) if self.known else self._default(shape)
            if self.in_step and self.warps == 1:
                found = np.zeros(shape, np.int32)
            elif not stores and (warps or (lanes and not self.in_step)):
                found = np.full(shape, MANY, np.int32)
            else:
                found = np.where(first == MANY, MANY, first // self.lanes) if self.in_step else first
            self.agents[key] = found
        return self.agents[key]

    def _default(self, shape: tuple[int, ...]) -> Holders:
        if not shape:
            return Holders(np.zeros((), np.int32), self.lanes > 1, self.warps > 1)
        found = holders(shape, default_layout(shape, self.warps, self.lanes))
        repeated = found.first.size < self.warps * self.lanes
        return Holders(found.first, found.lanes or repeated, found.warps or (repeated and self.warps > 1))

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


def _say(place: Place) -> str:
    return f"{Path(place[0]).name}:{place[1]}"
