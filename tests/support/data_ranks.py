"""Real ranks that load a store and hold it: forks of one process that has imported torch, instead of seconds each."""

import contextlib
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from geomano_hpc.config import DataConfig
from geomano_hpc.data import load_splits, node_memory
from geomano_hpc.data_prep.store import open_store
from geomano_hpc.slurm.testbed.configuration import unused_ports

PATIENCE = 240.0  # seconds, for a busy machine


@dataclass(frozen=True)
class DataRank:
    process: BaseProcess
    said: Connection

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def answer(self) -> tuple[str, ...]:
        """("sum", of all samples, ranks that share them), or ("failed", why)."""
        assert self.said.poll(PATIENCE), "the rank does not answer"
        return tuple(self.said.recv())

    def end(self) -> int | None:
        """The exit code, of a rank that has failed by itself."""
        self.process.join(PATIENCE)
        return self.process.exitcode


@contextlib.contextmanager
def ranks_of(store: Path, walls: str = "aa") -> Iterator[list[DataRank]]:
    """A rank for each letter; those with the same letter can share memory."""
    (port,) = unused_ports(1)
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    ranks = []
    for rank in range(len(walls)):
        ours, theirs = server.Pipe()
        process = server.Process(target=_load_and_hold, args=(rank, port, store, walls, theirs), daemon=True)
        process.start()
        ranks.append(DataRank(process, ours))
    try:
        yield ranks
    finally:
        for one in ranks:
            one.process.kill()
            one.process.join()


def _load_and_hold(rank: int, port: int, store: Path, walls: str, answers: Connection) -> None:
    torch.set_num_threads(1)
    if len(set(walls)) > 1:
        node_memory._walls = lambda: walls[rank]
    meeting = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=len(walls))
    config = DataConfig(store=store, loading="memory")
    try:
        loaded = load_splits(open_store(config.store), config)
    except Exception as error:
        answers.send(("failed", str(error)))
        return
    total = 0.0
    for split in loaded.splits.values():
        batch = split.batch(torch.arange(len(split)))
        total += (batch.input_BHWC.double().sum() + 2 * batch.target_BHWC.double().sum()).item()
    answers.send(("sum", str(total), str(loaded.record["ranks_sharing"])))
    answers.recv()  # holds the data until it is killed
