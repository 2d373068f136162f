"""Disk space management: old segments are deleted, and messages are refused while the disk is too full.

::

    every clean_interval_s (each second while messages are refused, at once when the disk refused a write)

    disk thread    how full are the disks, how old the segments?             unlink, unmap
                         |                        ^                               ^
                         v                        | a pause                       |
    loop           plan_deletion ----> drop the oldest segment from the log ------'
                         |
                         '-----------> writable

``storage/log/retention.py`` decides what may be deleted. One segment is deleted at a time, with a check of the disk and a pause in between,
so that traffic goes on and no more is deleted than needed.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple, TypeVar

from sprocketmq.broker.config import BrokerConfig
from sprocketmq.broker.topics import TopicTable
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import SprocketError
from sprocketmq.events import event
from sprocketmq.net.server import ServerConnection
from sprocketmq.net.tasks import Background
from sprocketmq.protocol.codes import RequestCode, ResponseCode
from sprocketmq.protocol.command import Command
from sprocketmq.protocol.names import SYSTEM_TOPICS
from sprocketmq.storage.fs import NO_ROOM, REAL_FS, FileSystem
from sprocketmq.storage.log.retention import MANUAL_ROUNDS, MAX_SEGMENTS_PER_ROUND, Cause, Limits, SegmentAge, plan_deletion, used_part
from sprocketmq.storage.store import MessageStore

log = logging.getLogger(__name__)

_T = TypeVar("_T")

FULL_INTERVAL_S = 1.0
PAUSE_S = 0.1


class _Look(NamedTuple):
    """The state of the disks at one moment."""

    used: float
    segments: list[SegmentAge]


class Cleaning:
    """The cleaner of one store. ``writable`` tells whether messages are accepted; ``refusal`` is the remark when they are not.

    Call ``start`` and ``stop`` on the event loop. ``executor`` runs what touches the disk. Segments are dropped on the loop's thread, which
    owns the store.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicTable,
        executor: Executor,
        *,
        background: Background,
        fs: FileSystem = REAL_FS,
        clock: Clock = SYSTEM_CLOCK,
        pause_s: float = PAUSE_S,
    ) -> None:
        self.writable = True
        self.refusal = ""
        self.used = 0.0
        self.deleted_segments = 0
        self._config = config
        self._limits = Limits.of(config.store)
        self._store = store
        self._topics = topics
        self._executor = executor
        self._fs = fs
        self._clock = clock
        self._pause_s = pause_s
        self._root = str(config.store.root)
        self._manual_rounds = 0
        self._helpless = False
        self._unmeasured = False
        self._timer: asyncio.TimerHandle | None = None
        # The round under way.
        self.round: asyncio.Task[list[str]] | None = None
        self._background = background
        self._running = self._stopping = False

    def handlers(self) -> dict[int, Callable[[ServerConnection, Command], None]]:
        return {
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_queues,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_topics,
        }

    # --- life ---

    def start(self) -> None:
        """Check the disk now and periodically."""
        self._running = True
        self._stopping = False
        self.begin()

    async def stop(self) -> None:
        """Stop after the current step; may be called twice."""
        self._running = False
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.round is not None:
            await asyncio.wait([self.round])

    @property
    def due(self) -> float | None:
        """When the next round begins, in the loop's time; None during a round, and when stopped."""
        return self._timer.when() if self._timer is not None else None

    def disk_refused(self, error: BaseException) -> None:
        """Check the disk at once, after a write failed for lack of space."""
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError) and cause.errno in NO_ROOM and self.writable:
            self.begin()

    def begin(self) -> None:
        """Begin a round now, unless one runs already."""
        if self._running and self.round is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self.round = self._background.spawn(self.clean(), "cleaning")
            self.round.add_done_callback(self._over)

    def _over(self, _: object) -> None:
        """Schedule the next round, even when the last one failed."""
        self.round = None
        if self._running:
            interval = self._config.clean_interval_s
            if not self.writable:
                interval = min(interval, FULL_INTERVAL_S)
            self._timer = asyncio.get_running_loop().call_later(interval, self.begin)

    # --- one round ---

    async def clean(self) -> list[str]:
        """Do one round and return the paths of the deleted files."""
        manual = self._manual_rounds > 0
        if manual:
            self._manual_rounds -= 1
        removed: list[str] = []
        for step in range(MAX_SEGMENTS_PER_ROUND):
            if step:
                await asyncio.sleep(self._pause_s)
            if self._stopping:
                break
            more = await self._step(manual, first=step == 0)
            removed += more
            if not more:
                break
        return removed

    async def _step(self, manual: bool, *, first: bool) -> list[str]:
        """Check the disks and delete one segment if that is allowed; return the paths of the deleted files."""
        store = self._store
        flushed = store.commitlog_flushed_offset  # a flush may be working on what is not on the disk yet
        segments = store.segments()[: MAX_SEGMENTS_PER_ROUND + 1]
        look = await self._in_thread(lambda: self._look(segments))
        if look is None:
            return []
        now = self._clock.time_ms()
        cause = self._limits.cause(look.used, now, manual=manual)
        removed = []
        if first and cause is not Cause.NONE:
            removed = await self._in_thread(lambda: self._drop_leftovers(cause, now)) or []
            if removed and cause is Cause.FORCED:
                return removed  # check again before deleting messages
        plan = plan_deletion(look.segments, flushed, look.used, self._limits, now, manual=manual)
        self._note(look.used, plan.writable)
        if not plan.segments:
            self._note_helpless(helpless=cause is Cause.FORCED and not removed and not plan.writable)
            return removed
        oldest = plan.segments[0]
        age_h = (now - oldest.modified_ms) / 3_600_000
        paths: list[str] = []
        try:
            for work in store.delete_steps(oldest.start + oldest.size, paths):
                if work is None:
                    await asyncio.sleep(0)
                else:
                    await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except (SprocketError, OSError) as e:
            event(log, logging.ERROR, "segment_delete_failed", reason=e)
            return []
        self.deleted_segments += 1
        event(
            log,
            logging.INFO,
            "segment_deleted",
            path=paths[0] if paths else None,
            other_files=max(0, len(paths) - 1),
            age_h=round(age_h, 1),
            cause=plan.cause.value,
            used_percent=round(look.used * 100),
        )
        return removed + paths

    async def _in_thread(self, work: Callable[[], _T]) -> _T | None:
        """Run ``work`` on a disk thread; None when it failed, which is logged once until it works again."""
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except OSError as e:
            if not self._unmeasured:
                event(log, logging.WARNING, "disk_unreadable", path=self._root, reason=f"nothing is deleted: {e}")
            self._unmeasured = True
            return None
        self._unmeasured = False
        return result

    def _look(self, segments: list[tuple[int, int, str]]) -> _Look:
        fs = self._fs
        self._store.release_deleted()  # segments that readers used a while ago
        used = max(used_part(*fs.usage(f"{self._root}/{name}")) for name in ("commitlog", "consumequeue"))
        return _Look(used, [SegmentAge(start, size, fs.modified_ms(path)) for start, size, path in segments])

    def _drop_leftovers(self, cause: Cause, now_ms: int) -> list[str]:
        """Delete files that recovery moved to ``damaged/`` once messages of their age would be deleted too."""
        removed = []
        folder = f"{self._root}/damaged"
        for entry in self._fs.list(folder):
            path = f"{folder}/{entry.name}"
            if not entry.is_dir and (cause is Cause.FORCED or self._limits.expired(self._fs.modified_ms(path), now_ms)):
                self._fs.unlink(path)
                removed.append(path)
        if removed:
            event(log, logging.INFO, "damaged_files_deleted", path=folder, files=len(removed), cause=cause.value)
        return removed

    def _note(self, used: float, writable: bool) -> None:
        self.used = used
        if not writable:
            self.refusal = (
                f"service not available now. It may be caused by: the broker's disk is full:"
                f" {used:.0%} of the disk of {self._root} is used,"
                f" messages are refused above {self._limits.warning:.0%}. Free space there, or keep messages for less time"
                " (file_reserved_hours); sends are taken again without a restart"
            )
        if writable != self.writable:
            self.writable = writable
            if writable:
                event(log, logging.WARNING, "disk_free_again", path=self._root, used_percent=round(used * 100))
            else:
                event(log, logging.ERROR, "disk_full", path=self._root, used_percent=round(used * 100))

    def _note_helpless(self, *, helpless: bool) -> None:
        if helpless and not self._helpless:
            reason = "no segment of the log may go: free space there, or add some"
            event(log, logging.ERROR, "nothing_to_delete", path=self._root, reason=reason)
        self._helpless = helpless

    # --- requests ---

    def delete_expired(self, conn: ServerConnection, command: Command) -> None:
        """Answer 329: delete expired segments in the next rounds, whatever the hour."""
        self._manual_rounds = MANUAL_ROUNDS
        self.begin()
        conn.respond(command, ResponseCode.SUCCESS)

    def clean_queues(self, conn: ServerConnection, command: Command) -> None:
        """Answer 306: delete queue files whose messages are no longer in the log."""
        self._store.delete_before(self._store.commitlog_min_offset)
        conn.respond(command, ResponseCode.SUCCESS)

    def clean_topics(self, conn: ServerConnection, command: Command) -> None:
        """Answer 316: delete queues of topics that are not in the topic table."""
        for topic in self._store.topics_on_disk():
            if topic not in self._topics and topic not in SYSTEM_TOPICS:
                self._store.delete_topic(topic)
        conn.respond(command, ResponseCode.SUCCESS)
