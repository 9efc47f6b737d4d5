"""A command run in the test's own process: its exit code, and what it says."""

import numpy as np
import pytest

from geomano_hpc.cli.app import main

PLANES = ("data", "convert", "planes.npz", "--problem", "steady", "--input", "k", "--target", "p")


def random(*shape: int, seed: int = 0) -> np.ndarray:
    values: np.ndarray = np.random.default_rng(seed).standard_normal(shape)
    return values


class Told:
    """Exit code and words of one command."""

    def __init__(self, capsys: pytest.CaptureFixture[str], words: tuple[object, ...]) -> None:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        self.code = int(ended.value.code or 0)
        self.out, self.err = capsys.readouterr()

    @property
    def used(self) -> str:
        """The one line that says what is used of what is there."""
        (line,) = [line for line in self.out.splitlines() if line.startswith("used: ")]
        return line

    @property
    def error(self) -> str:
        """The one line of an error."""
        (line,) = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert self.code
        assert "not expected" not in line
        return line


def good(told: Told) -> Told:
    assert told.code == 0, told.err
    return told
