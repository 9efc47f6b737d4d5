"""The first use of kernels by several processes of a machine, on a GPU that is not there (`fake_driver.py`)."""

import ast
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from geomano_hpc.kernels.audit.fake_driver import counted_compilations, fake_gpu
from geomano_hpc.kernels.triton import first_use, launching
from geomano_hpc.kernels.triton.first_use import Launch, compiled_once, prepare
from tests.support import small_kernels

pytestmark = pytest.mark.compile
FORKED = multiprocessing.get_context("fork")
BLOCKS = (32, 64, 128)


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(first_use, "_compiled_here", set())
    first_use._warn_of.cache_clear()
    with fake_gpu(fresh=True):
        yield


def launches() -> list[Launch]:
    return [
        Launch(small_kernels.scaled, (torch.zeros(4), 4, 2.0), {"BLOCK": block, "num_warps": 1, "num_stages": 1})
        for block in BLOCKS
    ]


def rank(answers: Any, inside: Event | None = None, hold: float = 0.0, key: str = "scaled") -> None:
    """A rank's first use, which tells how many kernels it compiled, how many it found, and how long it waited."""
    start = time.monotonic()
    with counted_compilations() as compiled, compiled_once(key, "a test's kernels"):
        entered = time.monotonic() - start
        if inside is not None:
            inside.set()
        prepare(launches())
        time.sleep(hold)
    answers.put((len(compiled.new), len(compiled.known), entered))


def test_one_of_several_processes_compiles_and_the_others_find_it() -> None:
    answers = FORKED.Queue()
    ranks = [FORKED.Process(target=rank, args=(answers,)) for _ in range(4)]
    for process in ranks:
        process.start()
    found = sorted(answers.get(timeout=120)[:2] for _ in ranks)
    for process in ranks:
        process.join()
    assert found == [(0, 3), (0, 3), (0, 3), (3, 0)]


def test_a_waiting_process_says_so_and_a_mark_spares_the_next_one_the_lock(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    answers, inside = FORKED.Queue(), FORKED.Event()
    first = FORKED.Process(target=rank, args=(answers, inside, 1.0))
    first.start()
    assert inside.wait(60)
    with caplog.at_level(logging.INFO):
        rank(mine := FORKED.Queue())
    first.join()
    assert answers.get(timeout=10)[:2] == (3, 0)
    new, known, waited = mine.get(timeout=10)
    assert (new, known) == (0, 3)
    assert waited > 0.5
    assert "another process compiles a test's kernels on this machine; waiting for it" in caplog.text
    (mark,) = (tmp_path / "geomano_hpc").glob("*.compiled")
    lock = mark.with_suffix(".lock")
    lock.unlink()
    with fake_gpu(fresh=True):
        rank(mine)
    assert mine.get(timeout=10)[:2] == (0, 3)
    assert not lock.exists()


def test_the_lock_of_a_killed_process_is_free() -> None:
    answers, inside = FORKED.Queue(), FORKED.Event()
    first = FORKED.Process(target=rank, args=(answers, inside, 600.0))
    first.start()
    assert inside.wait(60)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    rank(answers)
    new, known, _ = answers.get(timeout=10)
    assert new + known == 3


def test_a_block_that_fails_leaves_no_mark(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), compiled_once("scaled"):
        _ = 1 // 0
    assert not list((tmp_path / "geomano_hpc").glob("*.compiled"))
    with compiled_once("scaled"):
        pass
    assert len(list((tmp_path / "geomano_hpc").glob("*.compiled"))) == 1


def test_a_mark_is_of_its_key_sources_triton_and_target(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {first_use._mark("one"), first_use._mark("another")}
    with fake_gpu("sm_90"):
        marks.add(first_use._mark("one"))
    with monkeypatch.context() as newer:
        newer.setattr("triton.__version__", "99.0")
        marks.add(first_use._mark("one"))
    monkeypatch.setattr(first_use, "_sources", lambda: "edited")
    marks.add(first_use._mark("one"))
    assert len(marks) == 5


def test_a_folder_without_locks_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "geomano_hpc").write_text("a file where the folder should be")
    for key in ("one", "two", "one"):
        with compiled_once(key):
            prepare(launches())
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "every rank compiles for itself" in warning
    assert "TRITON_CACHE_DIR" in warning


@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_prepared_is_not_compiled_by_the_launch(workers: int) -> None:
    with counted_compilations() as compiled:
        prepare(launches(), workers)
        assert compiled.new == ["scaled"] * 3
    with counted_compilations() as compiled:
        for launch in launches():
            launching.launch(launch.kernel, (1,), launch.arguments, launch.constants)
    assert compiled.all == []


def test_the_interpreter_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with counted_compilations() as compiled, compiled_once("scaled"):
        prepare(launches())
    assert compiled.all == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_the_compiler_is_raised(workers: int) -> None:
    wrong = Launch(small_kernels.scaled, (torch.zeros(4), 4, 2.0), {"BLOCK": 33, "num_warps": 1})
    with pytest.raises(Exception, match="power of 2"):
        prepare([*launches(), wrong], workers)


class Parsing:
    """A kernel whose compilation is nothing but reading a source."""

    def warmup(self, **_: Any) -> None:
        ast.parse("x = 1")


def test_two_threads_never_parse_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 would refuse one of the sources now and then, and Triton keep a wrong hash of the kernel."""
    inside: list[int] = []
    most = 0

    def slow(*_: Any, **__: Any) -> None:
        nonlocal most
        inside.append(1)
        most = max(most, len(inside))
        time.sleep(0.02)
        inside.pop()

    monkeypatch.setattr(ast, "parse", slow)
    prepare([Launch(Parsing(), (), {})] * 6, workers=3)
    assert most == 1
    assert ast.parse is slow
