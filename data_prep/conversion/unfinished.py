"""The folder in which a store is built, so that a conversion that was killed goes on where it was.

.NAME.zarr.unfinished/
  job.json    what is being converted: another job starts from nothing
  lock        held by the process that works here, released by the system when it dies
  spill/      variables rewritten so that samples can be read (spill.py)
  done/       for each shard that is in place, its checksum and the statistics of its samples
  store/      the store; renamed to NAME.zarr when it is complete
"""

import base64
import contextlib
import fcntl
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from geomano_hpc.atomic import remove, sha256, write_json
from geomano_hpc.data_prep.shards import Shard
from geomano_hpc.errors import DataError

logger = logging.getLogger(__name__)


class Unfinished:
    def __init__(self, out: Path) -> None:
        self.path = out.with_name(f".{out.name}.unfinished")
        self.store, self.spill, self._done = (self.path / name for name in ("store", "spill", "done"))

    @contextlib.contextmanager
    def begin(self, job: dict[str, Any]) -> Iterator[None]:
        """On rank 0: take the folder for this process, and empty it if it was another job's."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DataError(f"{self.path}: another process is converting to this store; wait for it") from error
            except OSError as error:  # a file system without locks
                logger.warning("%s: cannot be locked (%s); do not convert to it twice at a time", self.path, error)
            if self._read_job() not in (None, job):
                logger.warning("%s: an unfinished conversion of other files or settings; starting again", self.path)
            if self._read_job() != job:
                for folder in (self.store, self.spill, self._done):
                    remove(folder)
                write_json(self.path / "job.json", job)
            for folder in (self.store, self.spill, self._done):
                folder.mkdir(exist_ok=True)
            yield

    def _read_job(self) -> Any:
        try:
            return json.loads((self.path / "job.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def record(self, shard: Shard, content: dict[str, Any]) -> None:
        """Its checksum and the moments of its rows, float64 [row, field, 3]: as bytes, of which there may be many."""
        moments: np.ndarray = content["moments"]
        text = base64.b64encode(moments.astype("<f8").tobytes()).decode("ascii")
        write_json(self._record_of(shard), {**content, "moments": text, "fields": moments.shape[1]})

    def recorded(self, shard: Shard) -> dict[str, Any] | None:
        """What was recorded of a shard, if the shard is there and whole."""
        if not self._record_of(shard).is_file() or not (self.store / shard.file).is_file():
            return None
        content: dict[str, Any] = json.loads(self._record_of(shard).read_text(encoding="utf-8"))
        if sha256(self.store / shard.file) != content["sha256"]:
            return None
        values = np.frombuffer(base64.b64decode(content["moments"]), "<f8")
        return {"sha256": content["sha256"], "moments": values.reshape(-1, content["fields"], 3)}

    def _record_of(self, shard: Shard) -> Path:
        return self._done / f"{shard.array}-{shard.number}.json"

    def remove(self) -> None:
        remove(self.path)
