"""What a benchmark remembers of its last start."""

from pathlib import Path

import pytest

from geomano_hpc.bench import remembered
from geomano_hpc.bench.remembered import Remembered


def test_an_error_is_found_once_by_one_revision_and_again_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "runs" / "errors.json"
    monkeypatch.setattr(remembered, "git_revision", lambda: "one")
    assert Remembered(file).error("a", lambda: 0.1) == 0.1
    assert Remembered(file).error("a", lambda: 0.2) == 0.1
    monkeypatch.setattr(remembered, "git_revision", lambda: "two")
    found = Remembered(file)
    assert found.error("b", lambda: 0.3) == 0.3
    assert found.error("a", lambda: 0.2) == 0.2
