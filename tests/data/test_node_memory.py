"""Two real ranks hold the data once, and nothing of it is left behind, however they end."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.data_ranks import ranks_of
from tests.support.stores import make_store

pytestmark = pytest.mark.ranks


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
        for word, total, sharing in (rank.answer() for rank in ranks):
            assert (word, sharing) == ("sum", "2")
            assert float(total) == pytest.approx(expected, rel=1e-9)
        size = sum(value.nbytes for value in values.values()) / 1024
        held = [proportional_kib(rank.pid) for rank in ranks]
        assert sum(held) == pytest.approx(size, rel=0.01)  # once, and not twice
        assert held == pytest.approx([size / 2, size / 2], rel=0.01)  # both have all of it
        # Without a name in any folder, nothing can stay behind.
        assert not any("/dev/shm/" in Path(f"/proc/{rank.pid}/maps").read_text() for rank in ranks)  # noqa: S108
        os.kill(ranks[0].pid, signal.SIGKILL)
        ranks[0].end()
        until = time.monotonic() + 60
        while proportional_kib(ranks[1].pid) < 0.99 * size and time.monotonic() < until:
            time.sleep(0.01)
        assert proportional_kib(ranks[1].pid) == pytest.approx(size, rel=0.01)  # the other one keeps it


def test_ranks_that_cannot_see_each_other_hold_a_copy_each(tmp_path: Path) -> None:
    make_store(tmp_path / "s.zarr")
    with ranks_of(tmp_path / "s.zarr", "ab") as ranks:
        assert [rank.answer()[2] for rank in ranks] == ["1", "1"]


def test_nodes_may_have_different_numbers_of_ranks(tmp_path: Path) -> None:
    make_store(tmp_path / "s.zarr")
    with ranks_of(tmp_path / "s.zarr", "aab") as ranks:
        assert [rank.answer()[2] for rank in ranks] == ["2", "2", "1"]


def test_damaged_sample_that_one_rank_decodes_stops_both(tmp_path: Path) -> None:
    make_store(tmp_path / "s.zarr")
    shard = tmp_path / "s.zarr" / "input" / "c" / "1" / "0" / "0" / "0"
    content = bytearray(shard.read_bytes())
    content[40] ^= 1
    shard.write_bytes(content)
    with ranks_of(tmp_path / "s.zarr") as ranks:
        answers = [rank.answer() for rank in ranks]
        assert [rank.end() for rank in ranks] == [0, 0]
    assert answers[0] == answers[1]
    word, why = answers[0]
    assert word == "failed"
    assert why.startswith(f"{tmp_path / 's.zarr'}: sample 4")
