"""Pulls of messages that are not in memory: a few threads read them into it, then the pull is answered like any other."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from sprocketmq.storage.store import ColdRead

log = logging.getLogger(__name__)

# Two keep a disk busy; more would only compete with the flushes of sends.
THREADS = 2
# Pulls that wait for the disk; further ones are refused. Each needs at most 32 MiB of the page cache.
MAX_PULLS = 1000
# The share of a busy loop's time that answering them may take.
SHARE = 0.2

_P = TypeVar("_P")


class ColdReads(Generic[_P]):
    """The pulls that wait for the disk, oldest first. ``loaded(pull)`` is called in the loop when the data of a pull is cached.

    Answering a pull may take a millisecond, and sends should not wait for many: one is answered in a turn of the loop, several when turns
    are long, for up to ``SHARE`` of the time. A pull that is dropped meanwhile, because its connection ended or its topic was deleted, is
    read in vain.
    """

    def __init__(self, loaded: Callable[[_P], None]) -> None:
        self._loaded = loaded
        self._waiting: dict[_P, ColdRead | None] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._cached: deque[_P] = deque()
        self._serving = False
        self._served_at = 0.0
        # The waiting pulls by the ranges that are being loaded: queues whose messages are interleaved share their reads.
        self._loading: dict[tuple[object, ...], list[_P]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> list[_P]:
        """The waiting pulls, oldest first."""
        return list(self._waiting)

    @property
    def full(self) -> bool:
        return len(self._waiting) >= MAX_PULLS

    def begin(self, pull: _P, cold: ColdRead) -> None:
        """Load what ``pull`` needs in another thread."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="sprocketmq-cold-reads")
        self._waiting[pull] = cold
        key = cold.key
        if (others := self._loading.get(key)) is not None:
            others.append(pull)
            return
        self._loading[key] = [pull]
        cold.hold()
        loading = asyncio.get_running_loop().run_in_executor(self._pool, cold.load)
        loading.add_done_callback(lambda done: self._ended(cold, done))

    def later(self, pull: _P) -> None:
        """Treat ``pull`` as loaded: its data is cached, and it takes its turn."""
        self._waiting[pull] = None
        self._line_up(pull)

    def _ended(self, cold: ColdRead, done: "asyncio.Future[None]") -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("reading ahead of a pull failed, it is answered all the same: %s", error)
        for pull in self._loading.pop(cold.key, ()):
            self._line_up(pull)
        cold.release()

    def _line_up(self, pull: _P) -> None:
        self._cached.append(pull)
        if not self._serving:
            self._serving = True
            self._served_at = time.perf_counter()
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        began = time.perf_counter()
        until = began + (began - self._served_at) * SHARE
        try:
            while self._cached:
                pull = self._cached.popleft()
                if pull in self._waiting:
                    cold = self._waiting.pop(pull)
                    try:
                        self._loaded(pull)
                    finally:
                        if cold is not None:
                            cold.release()
                self._served_at = time.perf_counter()
                if self._served_at >= until:
                    break
        finally:
            self._serving = bool(self._cached)
            if self._serving:
                asyncio.get_running_loop().call_soon(self._serve)

    def drop(self, wanted: Callable[[_P], bool]) -> list[_P]:
        """Remove and return the pulls for which ``wanted`` is true."""
        found = [pull for pull in self._waiting if wanted(pull)]
        for pull in found:
            cold = self._waiting.pop(pull)
            if cold is not None:
                cold.release()
        return found

    def close(self) -> None:
        """Forget all pulls and end the threads."""
        self._waiting.clear()
        self._cached.clear()
        self._loading.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
