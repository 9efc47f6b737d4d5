"""Memory or stream: chosen aloud, with the same samples, bounded memory, and the same losses."""

import gc
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from geomano_hpc.config import DataConfig, Recipe
from geomano_hpc.data import DataWait, Split, load_splits, node_memory
from geomano_hpc.data.engines import ENGINES, ZarrReader
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.errors import ConfigError
from geomano_hpc.training.loop import train
from geomano_hpc.training.records.run_folder import RunFolder
from tests.support.stores import make_store
from tests.support.training_runs import curve


def load(store: Path, **keys: Any) -> tuple[dict[str, Split], dict[str, Any]]:
    loaded = load_splits(open_store(store), DataConfig.model_validate({"store": store, **keys}))
    return loaded.splits, loaded.record


@pytest.mark.parametrize("loading", ["memory", "stream"])
def test_both_ways_give_the_samples_of_the_split_in_any_order(loading: str, tmp_path: Path) -> None:
    values = make_store(tmp_path / "s.zarr")
    splits, record = load(tmp_path / "s.zarr", loading=loading, train_samples=7)
    assert (len(splits["train"]), len(splits["test"])) == (7, 3)
    assert record["loading"] == loading
    order = torch.tensor([6, 0, 3, 2, 5, 1])
    batches = list(splits["train"].batches(order.split(4)))
    assert [len(batch.input_BHWC) for batch in batches] == [4, 2]
    assert np.array_equal(torch.cat([batch.input_BHWC for batch in batches]), values["input"][order])
    assert np.array_equal(torch.cat([batch.target_BHWC for batch in batches]), values["target"][order])
    test = splits["test"].batch(torch.tensor([2, 0]))
    assert np.array_equal(test.target_BHWC, values["target"][[10, 8]])


@pytest.mark.parametrize(("budget", "expected"), [(1.0, "memory"), (1e-6, "stream"), (None, "memory")])
def test_auto_takes_memory_within_its_budget_and_logs_the_numbers(
    budget: float | None, expected: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_store(tmp_path / "s.zarr")
    with caplog.at_level(logging.INFO, "geomano_hpc"):
        _, record = load(tmp_path / "s.zarr", memory_budget_gib=budget)
    assert record["loading"] == expected
    assert record["sample_bytes"] == 2 * 11 * 12 * 12 * 4
    assert f"data.loading auto: {expected}. The samples take 0.000 GiB" in caplog.text
    assert f"are free, the budget is {record['budget_bytes'] / (1 << 30):.2f} GiB (" in caplog.text


def test_memory_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(tmp_path / "s.zarr")
    monkeypatch.setattr(node_memory, "free_memory", lambda: 1000)
    with pytest.raises(ConfigError, match=r"0\.00 GiB are free; set data\.loading=stream"):
        load(tmp_path / "s.zarr", loading="memory")
    assert load(tmp_path / "s.zarr")[1]["loading"] == "stream"


class CountingReader(ZarrReader):
    """Notes which samples were asked for."""

    asked: list[int]

    def read_into(self, sample: int, out: np.ndarray) -> None:
        self.asked.append(sample)
        super().read_into(sample, out)


def test_stream_reads_ahead_but_never_further_than_prefetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(tmp_path / "s.zarr", samples=43)
    monkeypatch.setattr("geomano_hpc.data.engines.ZarrReader", CountingReader)
    monkeypatch.setattr(CountingReader, "asked", [], raising=False)
    splits, _ = load(tmp_path / "s.zarr", loading="stream", engine="zarr", prefetch=3)
    batches = splits["train"].batches(torch.arange(40).split(2))
    for used in range(1, 6):
        next(batches)
        due = 2 * 2 * (used + 3)  # two arrays, two samples a batch
        until = time.monotonic() + 60
        while len(CountingReader.asked) < due and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.02)
        assert len(CountingReader.asked) == due
    batches.close()  # type: ignore[attr-defined]
    time.sleep(0.02)
    assert len(CountingReader.asked) <= due


PEAK = """
import resource, sys, torch
from geomano_hpc.config import DataConfig
from geomano_hpc.data import load_splits
from geomano_hpc.data_prep.store import open_store
config = DataConfig(store=sys.argv[1], loading=sys.argv[2])
split = load_splits(open_store(config.store), config).splits["train"]
list(split.batches(torch.arange(40).split(2)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for batch in split.batches(torch.arange(len(split)).split(2)):
    pass
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_streaming_a_large_store_takes_no_more_memory(tmp_path: Path) -> None:
    """100 MiB of samples go through a few batches of half a MiB."""
    make_store(tmp_path / "s.zarr", samples=203, grid=256, per_shard=50)
    command = [sys.executable, "-c", PEAK, str(tmp_path / "s.zarr"), "stream"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, peak = map(int, done.stdout.split())
    assert peak - before < 50 * 1024


def test_wait_for_data_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(tmp_path / "s.zarr")
    right = ZarrReader.read_into

    def slow(self: ZarrReader, sample: int, out: np.ndarray) -> None:
        time.sleep(0.02)
        right(self, sample, out)

    monkeypatch.setattr(ZarrReader, "read_into", slow)
    splits, _ = load(tmp_path / "s.zarr", loading="stream", engine="zarr", reader_threads=1)
    wait = DataWait()
    assert len(list(splits["train"].batches(torch.arange(8).split(2), wait))) == 4
    assert wait.seconds >= 8 * 2 * 0.02 * 0.5


FORK = """
import os, sys, torch
from geomano_hpc.config import DataConfig
from geomano_hpc.data import load_splits
from geomano_hpc.data_prep.store import open_store
config = DataConfig(store=sys.argv[1], loading="stream")
split = load_splits(open_store(config.store), config).splits["train"]
split.batch(torch.arange(2))
if os.fork() == 0:
    try:
        split.batch(torch.arange(2))
    except Exception as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.slow
def test_forked_process_gets_an_error_and_does_not_hang(tmp_path: Path) -> None:
    make_store(tmp_path / "s.zarr")
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(tmp_path / "s.zarr")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert "was opened for streaming in process" in done.stdout
    assert "start processes with spawn" in done.stdout


def test_threads_that_read_end_with_the_split(tmp_path: Path) -> None:
    make_store(tmp_path / "s.zarr")

    def readers() -> int:
        return sum(thread.name.startswith("geomano-read") for thread in threading.enumerate())

    splits, _ = load(tmp_path / "s.zarr", loading="stream")
    splits["train"].batch(torch.arange(4))
    assert readers() > 0
    del splits
    gc.collect()
    until = time.monotonic() + 60
    while readers() and time.monotonic() < until:
        time.sleep(0.01)
    assert readers() == 0


@pytest.mark.slow
def test_losses_are_the_same_in_memory_and_streamed_with_every_engine(tiny_recipe: Recipe, tmp_path: Path) -> None:
    curves = {}
    for loading, engine in [("memory", "zarr"), *(("stream", engine) for engine in ENGINES)]:
        content = tiny_recipe.model_dump()
        content["data"] |= {"loading": loading, "engine": engine}
        content["training"]["epochs"] = 2
        folder = RunFolder(tmp_path / f"{loading}-{engine}")
        train(Recipe.model_validate(content), folder)
        curves[loading, engine] = curve(folder)
        line = folder.metrics()[-1]
        assert 0 < line["data_wait_share"] < 1
        start = json.loads(folder.environment_file.read_text())["starts"][0]
        assert (start["data_loading"]["loading"], start["data_loading"]["engine"]) == (loading, engine)
    assert all(found == curves["memory", "zarr"] for found in curves.values())


@pytest.mark.parametrize("limit", ["max", str(3 << 20)])
def test_free_memory_respects_the_limit_of_a_job(limit: str, tmp_path: Path) -> None:
    """Slurm puts the limit on a group above that of the process; cache that can go counts as free."""
    job = tmp_path / "cgroup" / "job"
    (job / "step").mkdir(parents=True)
    (job / "memory.max").write_text(f"{limit}\n")
    (job / "memory.current").write_text(f"{2 << 20}\n")
    (job / "memory.stat").write_text(f"anon 5\ninactive_file {1 << 19}\n")
    (tmp_path / "own").write_text("0::/job/step\n")
    room = node_memory._cgroup_room(tmp_path / "cgroup", tmp_path / "own")
    assert room == ([] if limit == "max" else [(1 << 20) + (1 << 19)])
    assert 0 < node_memory.free_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
