"""What a run said: where it stands, its last line, and following it while it grows."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from geomano_hpc.launch.manifest import jobs_folder
from geomano_hpc.training.records.run_folder import RunFolder


def log_files(run: RunFolder) -> list[Path]:
    """The run's own log, and what its job printed beside it: the latter tells why a run died without a word."""
    return [file for file in (run.log_file, *_job_outputs(run)) if file.is_file()]


def _job_outputs(run: RunFolder) -> list[Path]:
    job = run.job()
    if "job_id" not in job:
        return []
    from submitit.core.utils import JobPaths

    paths = JobPaths(job.get("folder", jobs_folder(run.path.parent)), job["job_id"], 0)
    return [paths.stderr, paths.stdout]


def last_error(run: RunFolder) -> tuple[str, Path | None]:
    """The last line that the run's job printed as error, or else of its log; and the file it stands in."""
    files = log_files(run)
    for file in sorted(files, key=lambda file: file.suffix != ".err"):
        lines = [line.strip() for line in last_lines(file, 20) if line.strip()]
        if lines:
            return lines[-1], file
    return "", None


def last_lines(file: Path, count: int, reach: int = 1 << 16, end: int | None = None) -> list[str]:
    """The last lines of a file, or of its bytes up to `end`, of which only the last `reach` bytes are read."""
    with file.open("rb") as opened:
        size = opened.seek(0, os.SEEK_END) if end is None else end
        start = opened.seek(max(0, size - reach))
        text = opened.read(size - start).decode("utf-8", errors="replace")
    lines = text.splitlines()
    if size > reach:
        lines = lines[1:]  # its beginning is cut off
    return lines[-count:]


def size_of(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def follow(file: Path, position: int, ended: Callable[[], bool], every_seconds: float = 0.5) -> Iterator[str]:
    """Text as it is added to the file behind a position, until the run has ended and everything is said. The file may
    come later."""
    while True:
        over = ended()  # before reading: what was written before the end is read
        if file.is_file():
            if file.stat().st_size < position:
                position = 0  # it was written anew
            with file.open("r", encoding="utf-8", errors="replace") as opened:
                opened.seek(position)
                text = opened.read()
                position = opened.tell()
            if text:
                yield text
        if over:
            return
        time.sleep(every_seconds)
