"""Memory that the ranks of one node share, so that a data set is held once per node and not once per GPU.

The first rank of a node makes an anonymous file in memory (memfd_create) and the others open it through /proc. It has
no name in any folder: the kernel frees it with the last process that holds it, however that process ends.
"""

import mmap
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from geomano_hpc.errors import DataError


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather(value: Any) -> list[Any]:
    """The value of every rank, on every rank."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


@dataclass(frozen=True)
class Node:
    """The ranks that can share memory with this one, and where it stands among them."""

    ranks: tuple[int, ...]
    rank: int
    copies: int  # how often this machine holds the data: more than once where its processes are walled off
    free_bytes: int  # the least that any rank of the world found free on its machine, for one copy

    @property
    def index(self) -> int:
        return self.ranks.index(self.rank)


def find_node() -> Node:
    """Every rank of the world calls it."""
    machine, walls = _machine(), _walls()
    found = gather((machine, walls, free_memory()))
    rank = dist.get_rank() if len(found) > 1 else 0
    ranks = tuple(r for r, (other, others_walls, _) in enumerate(found) if (other, others_walls) == (machine, walls))
    copies = {other: len({w for m, w, _ in found if m == other}) for other, _, _ in found}
    free = min(available // copies[other] for other, _, available in found)
    return Node(ranks, rank, copies[machine], free)


def shared_bytes(size: int, node: Node) -> np.ndarray:
    """So many bytes, the same memory on every rank of the node. Every rank of the world calls it."""
    first = node.index == 0
    if len(node.ranks) == 1:
        gather(None)  # other nodes may have more ranks: the same collectives as theirs
        raise_everywhere(None)
        return np.empty(size, np.uint8)
    made = -1
    try:
        if first:
            made = os.memfd_create("geomano-data")
            os.ftruncate(made, size)
        places = gather((os.getpid(), made))
        process, number = places[node.ranks[0]]
        failure = None
        try:
            opened = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            failure = f"rank {node.rank} cannot share memory with rank {node.ranks[0]} ({error})"
        raise_everywhere(DataError(f"{failure}; set data.loading=stream") if failure else None)
        try:
            return np.frombuffer(mmap.mmap(opened, size), np.uint8)
        finally:
            os.close(opened)
    finally:
        if made >= 0:  # the mappings keep it alive
            os.close(made)


def raise_everywhere(error: Exception | None) -> None:
    """An error of one rank is raised on all of them, where the others would wait for it. Every rank calls it."""
    failures: Sequence[Exception] = [failure for failure in gather(error) if failure is not None]
    if failures:
        raise failures[0]


def free_memory() -> int:
    """Bytes that can still be taken: the machine's available memory, or less under a limit of a control group."""
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return min(int(line.split()[1]) * 1024, *_cgroup_room(), 2**63)
    raise DataError("/proc/meminfo: has no MemAvailable; set data.loading to memory or stream")


def _cgroup_room(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """What each memory limit above this process leaves (Slurm sets one per job). Cache that can go counts as free."""
    rooms = []
    for line in own.read_text(encoding="utf-8").splitlines() if own.is_file() else []:
        _, controllers, path = line.split(":", 2)
        unified = controllers == ""
        if not unified and "memory" not in controllers.split(","):
            continue
        base = root if unified else root / "memory"
        names = ("memory.max", "memory.current") if unified else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        folder = base / path.lstrip("/")
        for group in (folder, *(parent for parent in folder.parents if parent.is_relative_to(base))):
            try:
                limit, used = ((group / name).read_text(encoding="utf-8").strip() for name in names)
                cache = (group / "memory.stat").read_text(encoding="utf-8").split()
            except OSError:
                continue
            if limit != "max":
                reclaimable = int(cache[cache.index("inactive_file") + 1]) if "inactive_file" in cache else 0
                rooms.append(max(0, int(limit) - int(used) + reclaimable))
    return rooms


def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()} {boot.read_text(encoding='utf-8').strip() if boot.is_file() else ''}"


def _walls() -> str:
    """Processes see each other's files in /proc within one process namespace and one user."""
    try:
        return f"{os.readlink('/proc/self/ns/pid')} {os.getuid()}"  # noqa: PTH115 (not a path)
    except OSError:
        return f"process {os.getpid()}"
