"""Ranks as real processes without the seconds that an import of torch takes: forks of processes that have done that.

The processes that fork compute nothing and start no threads. Their ranks run `geomano train`, have no launcher that
would end them, and are reached by their process ids. Two ranks come from two processes that hash words differently, as
those of a launcher do: what follows the order of a set differs between them.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

from geomano_hpc.config import Recipe, to_yaml
from geomano_hpc.slurm.testbed.configuration import unused_ports
from geomano_hpc.training.records.run_folder import RunFolder

DEADLINE = 300.0  # for a busy machine; a run takes a second or two
HASH_SEEDS = ("0", "1")  # they order the set {"exp_avg", "exp_avg_sq"} differently, for one


class Parent:
    """A process that forks ranks."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, **question: object) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps(question), file=stdin, flush=True)
        return dict(json.loads(stdout.readline()))


class Rank:
    def __init__(self, parent: Parent, pid: int, output: Path) -> None:
        self._parent, self.pid, self.output = parent, pid, output

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """The exit code, negative for a signal."""
        return int(self._parent.ask(wait=self.pid)["code"])

    def said(self) -> str:
        return self.output.read_text()


class Farm:
    def __init__(self, parents: Sequence[Parent]) -> None:
        self._parents = parents

    def run(self, arguments: Sequence[str], said: Path, ranks: int = 2) -> list[Rank]:
        """`geomano <arguments>` on so many ranks; what they say goes to <said>.rank<n>."""
        (port,) = unused_ports(1)
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        started = []
        for rank in range(ranks):
            names = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), **meeting}
            output = said.with_name(f"{said.name}.rank{rank}")
            parent = self._parents[rank % len(self._parents)]
            answer = parent.ask(fork=list(arguments), environment=names, output=str(output), folder=str(said.parent))
            started.append(Rank(parent, answer["pid"], output))
        return started

    def start(self, recipe: Recipe, folder: Path, ranks: int = 2) -> list[Rank]:
        """Ranks that train the recipe in the folder."""
        file = folder.with_name(f"{folder.name}.yaml")
        file.write_text(to_yaml(recipe))
        return self.run(["train", str(file), "--out", str(folder)], folder, ranks)

    def train(self, recipe: Recipe, folder: Path, ranks: int = 2) -> RunFolder:
        started = self.start(recipe, folder, ranks)
        codes = [rank.wait() for rank in started]
        assert not any(codes), [rank.said() for rank in started]
        return RunFolder(folder)

    def start_training(self, recipe: Recipe, folder: Path) -> list[Rank]:
        """Two ranks that have taken their first steps."""
        ranks = self.start(recipe, folder)
        until = time.monotonic() + DEADLINE
        while not (folder / "metrics.jsonl").is_file() or not (folder / "metrics.jsonl").stat().st_size:
            assert time.monotonic() < until, [rank.said() for rank in ranks]
            time.sleep(0.1)
        return ranks


@contextmanager
def farm() -> Iterator[Farm]:
    with ExitStack() as ending:
        yield Farm([ending.enter_context(_parent(seed)) for seed in HASH_SEEDS])


@contextmanager
def _parent(hash_seed: str) -> Iterator[Parent]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": hash_seed}
    with subprocess.Popen(
        [sys.executable, __file__],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield Parent(process)
        finally:
            Parent(process).ask(end=True)
            process.wait()


def import_what_training_does() -> None:
    """Also what torch and TensorBoard import by themselves at the first step or line, which takes longer than a run."""
    import torch
    import torch._dynamo
    import torch.utils.tensorboard.summary

    import geomano_hpc.training.loop
    from geomano_hpc.training.engines.deepspeed import import_deepspeed

    assert geomano_hpc.training.loop is not None
    import_deepspeed(torch.device("cpu"))


def _serve(questions: IO[str]) -> None:
    from geomano_hpc.cli.app import main

    import_what_training_does()
    alive: set[int] = set()
    try:
        for line in questions:
            question = json.loads(line)
            if "fork" in question:
                pid = os.fork()
                if pid == 0:
                    _rank(question, main)
                alive.add(pid)
                print(json.dumps({"pid": pid}), flush=True)
            elif "wait" in question:
                answer = _wait(question["wait"])
                alive.discard(question["wait"])
                print(json.dumps({"code": answer}), flush=True)
            else:
                break
    finally:  # also where the tests were killed, and no more questions come
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
    print(json.dumps({}), flush=True)


def _rank(question: dict[str, Any], main: Callable[[list[str]], object]) -> NoReturn:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background passes on that it is ignored
    os.environ.update(question["environment"])
    os.chdir(question["folder"])
    output = os.open(question["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        first, *others = question["fork"]
        if first.endswith(".py"):  # a program instead of an argument list of geomano
            sys.argv = [first, *others]
            runpy.run_path(first, run_name="__main__")
            raise SystemExit(0)
        main(question["fork"])
    except SystemExit as ended:
        sys.stdout.flush()
        os._exit(int(ended.code or 0))
    except BaseException:
        traceback.print_exc()
    os._exit(99)


def _wait(pid: int) -> int:
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return 98


if __name__ == "__main__":
    _serve(sys.stdin)
