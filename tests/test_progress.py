"""Progress on a real terminal and in a log."""

import os
import pty
import subprocess
import sys
from types import SimpleNamespace

import pytest

from geomano_hpc import progress as module
from geomano_hpc.progress import progress

PROGRAM = """
from geomano_hpc.progress import progress
with progress("work", 3) as advance:
    for item in range(3):
        advance(f"item {item}")
"""


def test_terminal_shows_a_bar() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while block := os.read(ours, 4096):
                shown += block
        except OSError:  # how Linux says that the other side is closed
            pass
        assert process.wait() == 0
    text = shown.decode()
    assert "work" in text
    assert "3/3" in text
    assert "item 2" in text


def test_log_gets_a_line_now_and_then_and_one_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 4.0, 11.0, 12.0, 13.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with progress("work", 4) as advance:
        for item in range(4):
            advance(f"item {item}")
    assert capsys.readouterr().err.splitlines() == ["work 2/4 item 1, 11 s left", "work 4/4 item 3"]


def test_hidden_progress_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("work", 1, shown=False) as advance:
        advance("done")
    assert capsys.readouterr().err == ""


def test_items_of_an_earlier_start_say_nothing_about_the_time_that_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 20.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with progress("work", 1000, done=900) as advance:
        advance("item")
    assert capsys.readouterr().err == "work 901/1000 item, 33 min 00 s left\n"
