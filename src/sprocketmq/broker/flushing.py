"""Flushing the log: the thread that flushes, the times of flushes, and the notification of sends, readers and replicas.

One flush is under way at a time; everything committed meanwhile is in the next one. With SYNC_FLUSH that makes a group commit: the more
sends wait, the more share one flush. Queues and index are flushed from time to time (``settle``), in another thread. Keys that wait in
memory are indexed when the log has not grown for a moment.

::

    loop     commit 1   commit 2   commit 3                 commit 4 ...
                |          |          |     answers 1         |        answers 2, 3
                v          '----------'---------------v       |               |
    thread      [ flush: 1 ]------------------------->[ flush: 2, 3 ]-------->[ flush: 4 ...
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Generic, Protocol, TypeVar

from sprocketmq.broker.acks import LOST, Acks
from sprocketmq.broker.flush_thread import FlushThread, FlushWorker
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import SprocketError, StoreFailed, StoreWriteFailed
from sprocketmq.net.peerlog import PeerLog
from sprocketmq.storage.store import MessageStore

log = logging.getLogger(__name__)

# A flush that takes this long is logged: SYNC_FLUSH sends wait for it.
SLOW_FLUSH_S = 1.0

# How often the keys that wait to be indexed are looked at, and after how long they are indexed even while the log grows. Only a few of
# them: a busy broker indexes many at a time by itself (storage/index/key_index.py), which costs the least for each.
INDEX_TICK_S = 0.05
INDEX_AFTER_MS = 250
INDEX_FEW_BYTES = 1 << 20

_T = TypeVar("_T")


class Replicas(Protocol):
    """The slaves of a master, as its sends need them."""

    def wrote(self) -> None:
        """Record that the log may have grown."""
        ...

    def replicated(self, count: int) -> int:
        """Return the log offset up to which at least ``count`` slaves have the log."""
        ...

    def in_sync(self, count: int) -> bool:
        """Return whether at least ``count`` slaves are close enough behind to be waited for."""
        ...


class Flusher(Generic[_T]):
    """Flushes of one store, and the sends that wait for them, or for ``replicas`` when there are any.

    ``answer`` is called with sends that waited and the code that answers them, ``published`` with the end of the log that readers see now,
    ``failed`` when a flush failed, once. All calls come on the event loop that ``start`` was called on.
    """

    def __init__(
        self,
        store: MessageStore,
        acks: Acks[_T],
        *,
        answer: Callable[[list[_T], int], None],
        published: Callable[[int], None] = lambda _: None,
        interval_s: float = 0.5,
        failed: Callable[[SprocketError], None] = lambda _: None,
        executor: Executor | None = None,
        worker: FlushWorker | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self.acks = acks
        self.replicas: Replicas | None = None
        self._interval_s = interval_s
        self._answer = answer
        self._published = published
        self._failed = failed
        self._executor = executor
        self._clock = clock
        self._worker = worker or FlushThread()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._idle: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._busy = False
        self._settling: asyncio.Future[tuple[int, SprocketError | None]] | None = None
        self._indexing: asyncio.Future[None] | None = None
        self._index_timer: asyncio.TimerHandle | None = None
        self._log_seen = -1
        self.flushed_end = 0
        self.settled_end = -1
        self.count = 0
        self.total_s = self.longest_s = 0.0
        self._slow_log = PeerLog(log, clock.monotonic)

    # --- life ---

    def start(self) -> None:
        """Start on an open store. Log that recovery found, and that may not be on the disk, is flushed."""
        self._loop = asyncio.get_running_loop()
        self.flushed_end = self._store.commitlog_flushed_offset
        self._worker.start(self._flush_once, self._worker_ended)
        self.wrote()

    async def drain(self) -> None:
        """Return when no send waits any more: all are on the disk, late, or lost."""
        while self.acks.waiting:
            idle = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            await idle

    async def stop(self) -> None:
        """Stop after the current flush; sends that still wait are dropped without an answer. May be called twice."""
        for timer in (self._timer, self._deadline_timer, self._index_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._deadline_timer = self._index_timer = None
        if self._loop is None or self._stopped is not None:
            return
        self._stopped = self._loop.create_future()
        if self._worker.alive:
            self._worker.end()
            await self._stopped
        self._worker.join()
        for task in (self._settling, self._indexing):
            if task is not None:
                await asyncio.wait([task])

    # --- called by the sends ---

    def wrote(self) -> None:
        """Record that the log may have grown: replicas get it, and it is flushed at once with SYNC_FLUSH, else after the interval."""
        if self.replicas is not None:
            self.replicas.wrote()
        self.offered()
        if self._busy or self._timer is not None or self._store.commitlog_max_offset == self.flushed_end:
            return
        if self.acks.sync:
            self._begin()
        elif self._loop is not None and not self.acks.failed:
            self._timer = self._loop.call_later(self._interval_s, self._begin)

    @property
    def unflushed(self) -> int:
        """Bytes of the log that are written but not known to be on the disk."""
        return self._store.commitlog_max_offset - self.flushed_end

    def admits(self, *, waits: bool) -> bool:
        """Return whether one more send is accepted; ``waits``: it will wait for disk or replicas."""
        acks = self.acks
        end = self._store.commitlog_max_offset
        return acks.admits(end - self.flushed_end if acks.sync else 0, end, waits=waits)

    @property
    def settling(self) -> bool:
        """Whether the queues are being flushed."""
        return self._settling is not None

    @property
    def draining(self) -> bool:
        """Whether ``drain`` waits for the last answers."""
        return bool(self._idle)

    @property
    def stopping(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stopped is not None

    def wait(self, sends: list[_T]) -> None:
        """Hold the sends of the last commit until disk and replicas have them, depending on the mode.

        With replicas to be called after every commit, also without such sends: readers do not see it yet.
        """
        acks = self.acks
        if acks.failed:
            acks.release(len(sends))
            self._give(sends, LOST)
            return
        replicas = self.replicas
        in_sync = not acks.replicas or (replicas is not None and replicas.in_sync(acks.replicas))
        answers = acks.wait(self._store.commitlog_max_offset, self._clock.monotonic(), sends, in_sync=in_sync)
        if not in_sync:
            self.show()
        self._give_each(answers)
        if self._deadline_timer is None:
            self._await_deadline()

    def settle(self) -> None:
        """Flush queues and index as well, if the log has grown since the last time: recovery after a crash then has less to read."""
        if (
            self._settling is None
            and self._loop is not None
            and self._stopped is None
            and not self.acks.failed
            and self._store.commitlog_max_offset != self.settled_end
        ):
            # A future and not a task: a task could be cancelled while its thread goes on, and two threads must not do this at a time.
            flush = partial(self._store.flush, thorough=True)
            self._settling = self._loop.run_in_executor(self._executor, self._attempt, flush)
            self._settling.add_done_callback(self._settled)

    # --- keys ---

    def offered(self) -> None:
        """Record that keys may wait to be indexed: a slave offers them later than its log grows."""
        if self._index_timer is None:
            self._await_index()

    def _await_index(self) -> None:
        if self._loop is not None and self._stopped is None:
            self._index_timer = self._loop.call_later(INDEX_TICK_S, self.look_at_index)

    def look_at_index(self) -> None:
        """Index waiting keys when the broker is idle, or when a few of them have waited long."""
        self._index_timer = None
        behind_bytes, behind_ms = self._store.index_lag
        if not behind_bytes:
            return  # the next message starts the timer again
        end = self._store.commitlog_max_offset
        idle, self._log_seen = end == self._log_seen, end
        if idle or (behind_ms >= INDEX_AFTER_MS and behind_bytes < INDEX_FEW_BYTES):
            if self._indexing is None and self._loop is not None and self._stopped is None:
                self._indexing = self._loop.run_in_executor(self._executor, self._store.index_pending)
                self._indexing.add_done_callback(self._indexed)
        else:
            self._await_index()

    def _indexed(self, indexing: "asyncio.Future[None]") -> None:
        self._indexing = None
        if indexing.cancelled():
            return  # with the threads of a broker that is aborted
        if (error := indexing.exception()) is not None:
            log.error("keys are not indexed for now, the next thorough flush tries again", exc_info=error)
        elif self._store.index_failure is None and self._index_timer is None:
            self._await_index()  # for what came meanwhile; a disk that refuses is tried again by the next thorough flush

    # --- flushing ---

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._busy or self.acks.failed or self._loop is None or self._stopped is not None:
            return
        self._busy = True
        self._worker.ask()

    def _flush_once(self) -> None:
        """Flush what is committed by now; runs in the worker."""
        assert self._loop is not None
        began = self._clock.monotonic()
        end, error = self._attempt(self._store.flush_log)
        self._loop.call_soon_threadsafe(self._done, end, error, self._clock.monotonic() - began)

    def _worker_ended(self, error: BaseException | None) -> None:
        """Handle the end of the worker, in its thread."""
        assert self._loop is not None
        tell = self._loop.call_soon_threadsafe
        try:
            if error is not None and not isinstance(error, RuntimeError):
                log.error("the thread that flushes has ended", exc_info=error)
                tell(
                    self.fail,
                    StoreFailed(str(self._store.config.root), f"the thread that flushes has ended: {type(error).__name__}: {error}"),
                )
            if self._stopped is not None:
                tell(self._end)
        except RuntimeError:  # no caller is left to notify
            log.debug("event loop closed before its flusher was stopped")

    def _attempt(self, flush: Callable[[], int]) -> tuple[int, SprocketError | None]:
        """Flush and return the log offset reached, or the error."""
        root = str(self._store.config.root)
        try:
            return flush(), None
        except SprocketError as e:
            return 0, e
        except OSError as e:
            return 0, StoreFailed(root, e.strerror or str(e))
        except Exception as e:
            log.exception("a flush of %s ended unexpectedly", root)
            return 0, StoreFailed(root, f"{type(e).__name__}: {e}")

    def _end(self) -> None:
        assert self._stopped is not None
        if not self._stopped.done():
            self._stopped.set_result(None)

    def _done(self, end: int, error: SprocketError | None, took_s: float) -> None:
        self._busy = False
        if error is None:
            self.count += 1
            self.total_s += took_s
            self.longest_s = max(self.longest_s, took_s)
            if took_s >= SLOW_FLUSH_S:
                self._slow_log.event("", "slow_flush", took_s=took_s)
            else:
                self._slow_log.sweep()
        self._note_surely(end, error)

    def _settled(self, settling: "asyncio.Future[tuple[int, SprocketError | None]]") -> None:
        self._settling = None
        if settling.cancelled():
            return  # with the threads of a broker that is aborted
        end, error = settling.result()
        if isinstance(error, StoreWriteFailed):
            log.warning("the log is flushed, what follows from it must wait: %s", error)
            return
        if error is None:
            self.settled_end = end
        self._note_surely(end, error)

    def _note_surely(self, end: int, error: SprocketError | None) -> None:
        try:
            self._note(end, error)
        except Exception as e:
            log.exception("sends cannot be answered after a flush")
            self.fail(StoreFailed(str(self._store.config.root), f"{type(e).__name__}: {e}"))

    def _note(self, end: int, error: SprocketError | None) -> None:
        if error is not None or self.acks.failed:
            self.fail(error)
            return
        end = min(end, self._store.commitlog_flushed_offset)  # a log that was cut meanwhile ends before it
        self.flushed_end = max(self.flushed_end, end)
        # Let the disk work on the next group while this one is answered.
        self.wrote()
        if end - self.settled_end >= self._store.settle_every_bytes:
            self.settle()
        self.answer_covered()

    def answer_covered(self) -> None:
        """Answer the sends that disk and replicas cover now, once readers see them; to be called when a replica has more."""
        answers = self.acks.covered(self.flushed_end, self._replicated)
        try:
            self.show()
        finally:
            self._give_each(answers)

    @property
    def _replicated(self) -> int:
        wanted = self.acks.replicas
        return self.replicas.replicated(wanted) if wanted and self.replicas is not None else 0

    def show(self) -> None:
        """Make as much of the log visible to readers as ``acks`` allows now."""
        end = self.acks.visible(self._store.commitlog_max_offset, self.flushed_end, self._replicated)
        self._store.publish(end)
        self._published(end)

    def fail(self, error: SprocketError | None) -> None:
        """Record that the store has failed, and answer everything that waits."""
        if error is not None and not self.acks.failed:
            if isinstance(error, StoreFailed):
                self._store.refuse(error.reason)
            self._failed(error)
        self._give(self.acks.fail(), LOST)

    def give_up(self) -> None:
        """Answer everything that waits with an error: this broker may acknowledge nothing any more."""
        self._give(self.acks.drop(), LOST)

    def _give_each(self, answers: list[tuple[int, list[_T]]]) -> None:
        for code, sends in answers:
            self._give(sends, code)

    def _give(self, sends: list[_T], code: int) -> None:
        if sends:
            try:
                self._answer(sends, code)
            except Exception:
                log.exception("%d sends that waited for disk or replicas are not answered", len(sends))
        if not self.acks.waiting and self._idle:
            for idle in self._idle:
                if not idle.done():
                    idle.set_result(None)
            self._idle.clear()

    # --- deadlines ---

    def _await_deadline(self) -> None:
        deadline = self.acks.deadline
        if deadline is not None and self._loop is not None and self._stopped is None:
            self._deadline_timer = self._loop.call_later(max(0.0, deadline - self._clock.monotonic()), self._deadline)

    def _deadline(self) -> None:
        self._deadline_timer = None
        self.expire()
        self._await_deadline()

    def expire(self) -> None:
        """Answer the sends whose timeouts are over; readers see what slaves did not get in time."""
        answers = self.acks.overdue(self._clock.monotonic())
        try:
            if self.acks.replicas:
                self.show()
        finally:
            self._give_each(answers)
