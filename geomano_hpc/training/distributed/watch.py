"""A dead or stuck rank ends the job within a time-out, by name: collectives alone would wait for it, some for ever.

A thread of every rank writes a sign of life to the store of torch.distributed, with how far its training has come.
Rank 0 reads those of all, the others that of rank 0 and its verdict. A second thread minds the clock, since a read from
a store whose process has stopped may never return.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch.distributed as dist

from geomano_hpc.errors import PreemptedError
from geomano_hpc.training.distributed.ranks import Ranks

logger = logging.getLogger(__name__)

_VERDICT, _FAILED = "geomano/verdict", "geomano/failed"
# A rank that is silent for so long while a collective has failed is the reason of the failure.
_SILENCE_AFTER_FAILURE = 5.0
_EXIT_CODE = 1


@dataclass
class Sign:
    """The last sign of a rank, and when it changed by our own clock: clocks of other machines do not count."""

    beat: str = ""
    place: int = 0
    beat_seen: float = 0.0
    place_seen: float = 0.0


class RankWatch:
    """`reached` marks how far this rank's training is; from its first call on, all ranks must keep moving."""

    def __init__(self, ranks: Ranks, timeout: float) -> None:
        self._ranks, self._timeout = ranks, timeout
        self._interval = min(1.0, timeout / 5)
        self._place, self._moving = 0, False
        self._collective_failed = False
        self._closed = threading.Event()
        now = time.monotonic()
        self._last_answer = now
        others = range(1, ranks.world_size) if ranks.is_main else (0,)
        self._signs = {rank: Sign(beat_seen=now, place_seen=now) for rank in others}
        self._who: dict[int, str] = {}
        self._own_place = (0, now)

    def start(self) -> None:
        self._store = dist.distributed_c10d._get_default_store().clone()  # type: ignore[attr-defined]
        self._store.set(_key("who", self._ranks.rank), f"{os.uname().nodename}, process {os.getpid()}")
        for work in (self._keep_signs, self._mind_the_clock):
            threading.Thread(target=work, name="geomano-watch", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def reached(self, place: int) -> None:
        """The training has come to this place: any number that grows with every part of a step."""
        self._place, self._moving = place, True

    def unhurried(self) -> None:
        """What comes now may take its time: the other ranks do not wait for it with a clock in their hands."""
        self._moving = False

    def failed(self, error: BaseException) -> None:
        """This rank ends with an error of its own, which it reports: tell the others, so that they do not guess."""
        reason = f"{self._name(self._ranks.rank)} failed with {type(error).__name__}: {error}"
        with contextlib.suppress(Exception):
            self._store.set(_VERDICT if self._ranks.is_main else _FAILED, reason)

    def wait_for_verdict(self) -> None:
        """A collective failed here. The watch finds out why and ends this process; returns if it does not."""
        self._collective_failed = True
        time.sleep(min(self._timeout, _SILENCE_AFTER_FAILURE) + 4 * self._interval)

    def _keep_signs(self) -> None:
        beat = 0
        while not self._closed.wait(self._interval):
            beat += 1
            try:
                self._store.set(_key("sign", self._ranks.rank), f"{beat} {self._place if self._moving else -1}")
                self._read_others()
                self._last_answer = time.monotonic()
                self._judge()
            except Exception as error:
                if self._closed.wait(2 * self._interval):
                    return  # the job is over, and the store with it
                if not self._ranks.is_main:
                    self._end(f"{self._name(0)} is gone ({_first_line(error)})")
                logger.warning("the store of the ranks failed (%s)", _first_line(error))

    def _read_others(self) -> None:
        now = time.monotonic()
        for rank, sign in self._signs.items():
            if rank not in self._who and self._store.check([_key("who", rank)]):
                self._who[rank] = self._store.get(_key("who", rank)).decode()
            if not self._store.check([_key("sign", rank)]):
                continue
            beat, place = self._store.get(_key("sign", rank)).decode().split()
            if beat != sign.beat:
                sign.beat, sign.beat_seen = beat, now
            if int(place) != sign.place or int(place) < 0:
                sign.place, sign.place_seen = int(place), now
        if self._ranks.is_main:
            if self._own_place[0] != self._place or not self._moving:
                self._own_place = (self._place, now)
        elif self._store.check([_VERDICT]):
            self._end("")  # rank 0 has said why

    def _judge(self) -> None:
        now = time.monotonic()
        if self._ranks.is_main and self._store.check([_FAILED]):
            self._end(self._store.get(_FAILED).decode())
        patience = min(self._timeout, _SILENCE_AFTER_FAILURE) if self._collective_failed else self._timeout
        silent = [rank for rank, sign in self._signs.items() if now - sign.beat_seen > patience]
        if silent:
            self._end(f"{self._names(silent)} gave no sign of life for {patience:g} s: killed, stopped or cut off")
        if self._ranks.is_main and all(now - seen > self._timeout for _, seen in self._places().values()):
            # All wait for the one that is behind; the others stand inside a collective.
            behind = min(place for place, _ in self._places().values())
            stuck = [rank for rank, (place, _) in self._places().items() if place == behind]
            self._end(f"{self._names(stuck)} did not move for {self._timeout:g} s")

    def _places(self) -> dict[int, tuple[int, float]]:
        own = {0: self._own_place}
        return own | {rank: (sign.place, sign.place_seen) for rank, sign in self._signs.items()}

    def _mind_the_clock(self) -> None:
        """Rank 0, or the launcher, serves the store: no answer at all from it is an answer."""
        while not self._closed.wait(self._interval):
            silence = time.monotonic() - self._last_answer
            if silence > self._timeout + 2 * self._interval:
                reason = f"the store of the ranks, kept by rank 0 or its launcher, did not answer for {silence:.0f} s"
                self._end(reason, store_answers=False)

    def _names(self, ranks: list[int]) -> str:
        return ", ".join(self._name(rank) for rank in ranks)

    def _name(self, rank: int) -> str:
        where = f" ({self._who[rank]})" if rank in self._who else ""
        return f"rank {rank} of {self._ranks.world_size}{where}"

    def _end(self, reason: str, store_answers: bool = True) -> None:
        """End this process here and now: its main thread may stand in a collective that never returns."""
        if self._closed.is_set():
            return
        if reason:
            logger.error("%s; the job ends, and goes on from its newest checkpoint when started again", reason)
            if store_answers and self._ranks.is_main:
                with contextlib.suppress(Exception):
                    self._store.set(_VERDICT, reason)
        for handler in (*logging.getLogger("geomano_hpc").handlers, *logging.getLogger().handlers):
            handler.flush()
        if self._ranks.is_main:
            time.sleep(2 * self._interval)  # the store goes with this process: the others read in it why the job ends
        os._exit(_EXIT_CODE)


@contextlib.contextmanager
def watching(ranks: Ranks, timeout: float) -> Iterator[RankWatch]:
    """Watch the ranks while the block runs. With one rank there is nothing to watch."""
    watch = RankWatch(ranks, timeout)
    if ranks.world_size == 1:
        yield watch
        return
    watch.start()
    try:
        yield watch
    except PreemptedError:
        raise  # on every rank
    except Exception as error:
        if _is_of_a_collective(error):
            watch.wait_for_verdict()  # ends this process where another rank is the cause
        watch.failed(error)
        raise
    finally:
        watch.close()


def _key(kind: str, rank: int) -> str:
    return f"geomano/{kind}/{rank}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _is_of_a_collective(error: Exception) -> bool:
    """Gloo reports a lost connection as a plain RuntimeError."""
    words = ("gloo", "nccl", "connection closed", "connection reset", "timed out waiting")
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in words)
