"""Two real ranks hold the data once, and nothing of it is left behind, however they end."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from geomano_hpc.slurm.testbed.configuration import unused_ports
from tests.support.stores import make_store

RANK = """
import sys, torch, torch.distributed as dist
from geomano_hpc.config import DataConfig
from geomano_hpc.data import load_splits, node_memory
from geomano_hpc.data_prep.store import open_store
rank, port, store, walls = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
if len(set(walls)) > 1:
    node_memory._walls = lambda: walls[rank]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=len(walls))
config = DataConfig(store=store, loading="memory")
try:
    loaded = load_splits(open_store(config.store), config)
except Exception as error:
    print("failed", error, flush=True)
    sys.exit(0)
total = 0.0
for split in loaded.splits.values():
    batch = split.batch(torch.arange(len(split)))
    total += (batch.input_BHWC.double().sum() + 2 * batch.target_BHWC.double().sum()).item()
print("sum", total, loaded.record["ranks_sharing"], flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def ranks_of(store: Path, walls: str = "aa") -> Iterator[list[subprocess.Popen[str]]]:
    """A rank for each letter; those with the same letter can share memory."""
    (port,) = unused_ports(1)
    options = (str(port), str(store), walls)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), *options], **pipes)  # type: ignore[call-overload]
        for rank in range(len(walls))
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def answer(rank: subprocess.Popen[str]) -> list[str]:
    assert rank.stdout is not None
    return rank.stdout.readline().split()


def proportional_kib(process: int) -> float:
    """What this process holds of the shared data, where a page of two processes counts half for each."""
    total, inside = 0.0, False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        if "-" in line.split()[0] and not line.split()[0].endswith(":"):
            inside = "memfd:geomano-data" in line
        elif inside and line.startswith("Pss:"):
            total += float(line.split()[1])
    return total


def test_two_ranks_hold_one_copy_and_leave_nothing_behind_when_killed(tmp_path: Path) -> None:
    values = make_store(tmp_path / "s.zarr", samples=43, grid=256, per_shard=10)
    expected = values["input"].sum(dtype="float64") + 2 * values["target"].sum(dtype="float64")
    with ranks_of(tmp_path / "s.zarr") as ranks:
        for word, total, sharing in (answer(rank) for rank in ranks):
            assert (word, sharing) == ("sum", "2")
            assert float(total) == pytest.approx(expected, rel=1e-9)
        size = sum(value.nbytes for value in values.values()) / 1024
        held = [proportional_kib(rank.pid) for rank in ranks]
        assert sum(held) == pytest.approx(size, rel=0.01)  # once, and not twice
        assert held == pytest.approx([size / 2, size / 2], rel=0.01)  # both have all of it
        # Without a name in any folder, nothing can stay behind.
        assert not any("/dev/shm/" in Path(f"/proc/{rank.pid}/maps").read_text() for rank in ranks)  # noqa: S108
        os.kill(ranks[0].pid, signal.SIGKILL)
        ranks[0].wait()
        until = time.monotonic() + 60
        while proportional_kib(ranks[1].pid) < 0.99 * size and time.monotonic() < until:
            time.sleep(0.01)
        assert proportional_kib(ranks[1].pid) == pytest.approx(size, rel=0.01)  # the other one keeps it


def test_ranks_that_cannot_see_each_other_hold_a_copy_each(tmp_path: Path) -> None:
    make_store(tmp_path / "s.zarr")
    with ranks_of(tmp_path / "s.zarr", "ab") as ranks:
        assert [answer(rank)[2] for rank in ranks] == ["1", "1"]


def test_nodes_may_have_different_numbers_of_ranks(tmp_path: Path) -> None:
    make_store(tmp_path / "s.zarr")
    with ranks_of(tmp_path / "s.zarr", "aab") as ranks:
        assert [answer(rank)[2] for rank in ranks] == ["2", "2", "1"]


def test_damaged_sample_that_one_rank_decodes_stops_both(tmp_path: Path) -> None:
    make_store(tmp_path / "s.zarr")
    shard = tmp_path / "s.zarr" / "input" / "c" / "1" / "0" / "0" / "0"
    content = bytearray(shard.read_bytes())
    content[40] ^= 1
    shard.write_bytes(content)
    with ranks_of(tmp_path / "s.zarr") as ranks:
        answers = [answer(rank) for rank in ranks]
        assert [rank.wait(120) for rank in ranks] == [0, 0]
    assert answers[0] == answers[1]
    assert answers[0][:4] == ["failed", f"{tmp_path / 's.zarr'}:", "sample", "4"]
