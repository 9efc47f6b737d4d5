"""What tests of commands share."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.told import Told, random


@pytest.fixture
def planes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder with a file of one's own in it."""
    monkeypatch.chdir(tmp_path)
    np.savez("planes.npz", k=random(10, 11, 9), p=random(10, 11, 9, seed=1))


@pytest.fixture
def geomano(capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda *words: Told(capsys, words)
