"""Requests for messages that are not in memory: a few threads read them into it, then the request is answered like any other.

A request that waited for the disk in the loop would delay every send.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

from sprocketmq.broker.waiting_request import WaitingRequest
from sprocketmq.net.server import ServerConnection
from sprocketmq.protocol.command import Command
from sprocketmq.storage.store import ColdRead, MessageStore

log = logging.getLogger(__name__)

# Two keep a disk busy; more would only compete with the flushes of sends.
THREADS = 2
# Requests of a kind that wait for the disk; further ones are refused. Each needs at most 32 MiB of the page cache.
MAX_WAITING = 1000
# A request waits for the beginning of a record, then for the rest of a long one; after that it is answered from wherever the record is.
MAX_RECORD_LOADS = 2
# The share of a busy loop's time that answering them may take.
SHARE = 0.2

_R = TypeVar("_R", bound=WaitingRequest)


class DiskReads:
    """Reads what requests lack in other threads, then answers them one after the other.

    Answering a request may take a millisecond, and sends should not wait for many: one is answered in a turn of the loop, several when
    turns are long, for up to ``SHARE`` of the time.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._ready: deque[Callable[[], None]] = deque()
        self._serving = False
        self._served_at = 0.0
        # What to call when a read has ended, by what it reads: queues whose messages are interleaved share their reads.
        self._loading: dict[tuple[object, ...], list[Callable[[], None]]] = {}

    def load(self, cold: ColdRead, answer: Callable[[], None]) -> None:
        """Call ``answer`` in the loop, when it is its turn, after ``cold`` was read by another thread."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="sprocketmq-cold-reads")
        key = cold.key
        if (others := self._loading.get(key)) is not None:
            others.append(answer)
            return
        self._loading[key] = [answer]
        cold.hold()
        loading = asyncio.get_running_loop().run_in_executor(self._pool, cold.load)
        loading.add_done_callback(lambda done: self._ended(cold, done))

    def load_all(self, reads: Sequence[ColdRead], answer: Callable[[], None]) -> None:
        """Call ``answer`` in the loop, when it is its turn, after all of ``reads`` were read."""
        left = len(reads)

        def loaded() -> None:
            nonlocal left
            left -= 1
            if not left:
                answer()

        for read in reads:
            self.load(read, loaded)

    async def read(self, cold: ColdRead) -> None:
        """Return when ``cold`` was read by another thread, and it is the caller's turn."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.load(cold, lambda: None if done.done() else done.set_result(None))
        await done

    def _ended(self, cold: ColdRead, done: "asyncio.Future[None]") -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("reading ahead for a request failed, it is answered all the same: %s", error)
        for answer in self._loading.pop(cold.key, ()):
            self.line_up(answer)
        cold.release()

    def line_up(self, answer: Callable[[], None]) -> None:
        """Call ``answer`` when it is its turn."""
        self._ready.append(answer)
        if not self._serving:
            self._serving = True
            self._served_at = time.perf_counter()
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        began = time.perf_counter()
        until = began + (began - self._served_at) * SHARE
        try:
            while self._ready:
                self._ready.popleft()()
                self._served_at = time.perf_counter()
                if self._served_at >= until:
                    break
        finally:
            self._serving = bool(self._ready)
            if self._serving:
                asyncio.get_running_loop().call_soon(self._serve)

    def close(self) -> None:
        """Forget all requests and end the threads."""
        self._ready.clear()
        self._loading.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


class ColdReads(Generic[_R]):
    """The requests of one kind that wait for the disk, oldest first. ``loaded(request)`` answers one whose messages are in memory.

    A request that is dropped meanwhile, because its connection ended or its topic was deleted, is read in vain.
    """

    def __init__(self, disk: DiskReads, loaded: Callable[[_R], None]) -> None:
        self._disk = disk
        self._loaded = loaded
        self._waiting: dict[_R, ColdRead | None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> list[_R]:
        """The waiting requests, oldest first."""
        return list(self._waiting)

    def begin(self, request: _R, cold: ColdRead) -> bool:
        """Load what ``request`` needs in another thread; False when too many wait already, and it is to be refused."""
        if len(self._waiting) >= MAX_WAITING:
            cold.release()
            return False
        request.keep()
        request.loads += 1
        self._waiting[request] = cold
        self._disk.load(cold, partial(self._answer, request))
        return True

    def later(self, request: _R) -> None:
        """Treat ``request`` as loaded: its data is cached, and it takes its turn."""
        self._waiting[request] = None
        self._disk.line_up(partial(self._answer, request))

    def _answer(self, request: _R) -> None:
        if request not in self._waiting:
            return
        cold = self._waiting.pop(request)
        try:
            self._loaded(request)
        finally:
            if cold is not None:
                cold.release()

    def drop(self, wanted: Callable[[_R], bool]) -> list[_R]:
        """Remove and return the requests for which ``wanted`` is true."""
        found = [request for request in self._waiting if wanted(request)]
        for request in found:
            cold = self._waiting.pop(request)
            if cold is not None:
                cold.release()
        return found

    def close(self) -> None:
        """Forget the requests."""
        self._waiting.clear()


class _RecordRequest(WaitingRequest):
    """A request about the record at ``log_offset``, which ``answer`` answers."""

    __slots__ = ("answer", "log_offset")

    def __init__(self, conn: ServerConnection, command: Command, log_offset: int, answer: Callable[[], None]) -> None:
        super().__init__(conn, command)
        self.log_offset = log_offset
        self.answer = answer


class ColdRecords:
    """Requests about a record at a log offset, which may have to be read from the disk first.

    ``settle`` is called after each that has waited for the disk: it may have staged a message.
    """

    def __init__(self, store: MessageStore, disk: DiskReads, *, settle: Callable[[], None]) -> None:
        self._store = store
        self._settle = settle
        self._cold: ColdReads[_RecordRequest] = ColdReads(disk, self._loaded)

    def when_in_memory(self, conn: ServerConnection, command: Command, log_offset: int, answer: Callable[[], None]) -> None:
        """Call ``answer``, which answers ``command``: at once, or when the record has been read by another thread."""
        self._look(_RecordRequest(conn, command, log_offset, answer))

    def _look(self, request: _RecordRequest) -> None:
        cold = self._store.find_cold_record(request.log_offset) if request.loads < MAX_RECORD_LOADS else None
        if cold is None:
            request.answer()
        elif not self._cold.begin(request, cold):
            request.answer_busy()

    def _loaded(self, request: _RecordRequest) -> None:
        try:
            self._look(request)
            self._settle()
        except Exception as e:
            log.exception("request %d about the record at %d of the log cannot be answered", request.command.code, request.log_offset)
            request.answer_error(e)
