"""Delayed messages: parked in the queue of their level until they are due, then stored again in their own topic.

::

    send, DELAY=3, topic orders      SCHEDULE_TOPIC_XXXX, queue 2               orders
    or a message given back     ---> record: REAL_TOPIC=orders REAL_QID=1  ---> record like it, queue 1,
                                     unit: deliver at = stored at + 10 s        its prepared offset: where it was parked

Messages of one level come due in the order they were parked, so a level is a queue and a position in it; one timer waits for the earliest
of all levels. The positions are saved in ``config/delayOffset.json``, as the reference does, which alone would repeat what was delivered
since the last save when a broker is killed. Therefore the file also records the log offset up to which it is complete, and a start reads
the log from there on: each delivered record points to the parked one it was made from, so each is delivered once.

What is due and not in memory is read by another thread first (``cold_reads``).

Messages with a delivery time of their own wait in a queue of their own (timer.py) and are delivered in the same way.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from sprocketmq.broker.cold_reads import DiskReads
from sprocketmq.broker.delay_progress import DelayProgress, read_offsets
from sprocketmq.broker.forward_clock import ForwardClock
from sprocketmq.broker.parked_messages import parked_message
from sprocketmq.broker.timer import Timers, due_of, named, recalled_by
from sprocketmq.broker.topics import Topic, TopicTable
from sprocketmq.clock import SYSTEM_CLOCK, Clock
from sprocketmq.errors import FatalError, InvalidMessage, MessageTooLarge, RemoteProtocolError, RetriableError, SprocketError, StoreFailed
from sprocketmq.protocol.hashing import tags_code
from sprocketmq.protocol.names import (
    MAX_INTERNAL_TOPIC_LENGTH,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SEND_FORBIDDEN_TOPICS,
    TIMER_TOPIC,
    name_problem,
)
from sprocketmq.protocol.properties import DELAY, REAL_QID, REAL_TOPIC, TIMER_DEL_UNIQKEY, TIMER_OUT_MS, encode_properties
from sprocketmq.protocol.records import ReceivedMessage, Record
from sprocketmq.storage.config import MAX_DELAY_LEVELS
from sprocketmq.storage.fs import Buffer
from sprocketmq.storage.store import ColdRead, MessageStore

log = logging.getLogger(__name__)

# Deliveries in one turn of the loop: a few milliseconds of work.
MAX_AT_ONCE = 128
MAX_BYTES_AT_ONCE = 1 << 19
# Deliveries wait for the units of a queue, then for the messages; after that many waits they are read from wherever they are.
MAX_LOADS = 3
# The longest wait: the wall clock may be set forward meanwhile.
MAX_WAIT_S = 1.0
# Pause after the disk refused a write, or while due messages are not flushed yet.
AGAIN_MS = 500

# A delivered message as held pulls need to know it: topic, queue id, tag code.
Arrival = tuple[Topic, int, int | None]


class _Level:
    """One level: the queue offset to deliver next, the known end of the queue, and when the next message is due (None: not known)."""

    __slots__ = ("delay_ms", "due_ms", "end", "next", "queue_id")

    def __init__(self, queue_id: int, delay_ms: int | None) -> None:
        self.queue_id = queue_id
        self.delay_ms = delay_ms
        self.next = 0
        self.end = 0
        self.due_ms: int | None = None


class DelayService:
    """The delayed messages of one broker.

    ``take_timers`` and ``open`` it when the store is open, ``start`` it on the loop, ``stop`` it before the store closes.

    ``settle`` is called before anything is staged here, so that nobody's sends share a commit that may fail; ``committed`` with what was
    delivered, its bytes, and how many of it, the last ones, were timed; ``retried`` with the log offsets of a parked message and of its
    copy in a retry topic, when the copy is staged; ``failed`` when the store takes nothing more. ``writable`` tells whether the disk has
    room.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        disk: DiskReads,
        *,
        settle: Callable[[], None],
        committed: Callable[[list[Arrival], int, int], None],
        retried: Callable[[int, int], None],
        writable: Callable[[], bool],
        failed: Callable[[SprocketError], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._topics = topics
        self._disk = disk
        self._settle = settle
        self._committed = committed
        self._retried = retried
        self._writable = writable
        self._failed = failed
        self._clock = clock
        self.time = ForwardClock(clock)
        self._levels_ms = store.config.delay_levels_ms
        self._levels = {queue_id: _Level(queue_id, delay) for queue_id, delay in enumerate(self._levels_ms)}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ms = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        # How often what is due has waited for the disk, and the reads under way: nothing is delivered meanwhile.
        self._loads = 0
        self._loading = False
        self._homeless: set[str] = set()
        self.timers = Timers(store)
        self._timers_log_offset = 0
        self._timers_after_ms = 0
        self.delivered = 0
        self.progress = DelayProgress(store, self.timers, self.offsets, clock)

    # --- life ---

    def take_timers(self, tree: Mapping[Any, Any]) -> None:
        """Take the content of timers.json, empty when there is none. Raises RemoteProtocolError for other content."""
        self._timers_log_offset = self.timers.open(tree)
        if self._timers_log_offset > self._store.commitlog_max_offset:
            self._timers_log_offset = self.timers.open({})

    def open(self, tree: Mapping[Any, Any]) -> None:
        """Take the content of delayOffset.json (empty when there is none), and read from the log what was delivered since.

        Raises RemoteProtocolError for other content. The caller saves the file afterwards: a broker that is killed before its first save
        would use offsets that another one wrote.
        """
        self.time.not_before(self._store.newest_ms)
        for queue_id in range(len(self._levels_ms), MAX_DELAY_LEVELS):
            if self._store.max_offset(SCHEDULE_TOPIC, queue_id):  # of a time with more levels
                self._levels[queue_id] = _Level(queue_id, None)
        offsets, log_offset = read_offsets(tree)
        if log_offset is not None and log_offset > self._store.commitlog_max_offset:
            offsets, log_offset = {}, 0  # it counts deliveries that this log does not have
        begins = []
        for level in self._levels.values():
            low, level.end = self._span(level)
            level.next = min(max(offsets.get(level.queue_id + 1, 0), low), level.end)
            units = self._store.units(SCHEDULE_TOPIC, level.queue_id, level.next, 1)
            begins += [unit[0] for unit in units]
        starts = [max(log_offset, min(begins))] if begins and log_offset is not None else []
        waiting = self.timers.first_waiting()
        if waiting is not None:
            starts.append(max(self._timers_log_offset, waiting))
        if starts:
            self._skip_delivered(min(starts), redeliver=log_offset is not None)
            self._store.flush_log()  # before saving offsets that refer to it
        self.timers.load()
        for level in self._levels.values():
            self._look(level)
        self.progress.finish()

    def _skip_delivered(self, log_offset: int, *, redeliver: bool) -> None:
        """Read the log from log offset ``log_offset`` on, and skip the parked messages whose delivered copies it has.

        With ``redeliver``, parked messages before those are delivered: lost power may have taken their copies and left later ones.
        """
        delivered: dict[int, set[int]] = {}
        for _, source in self._store.deliveries_since(log_offset):
            record = self._store.record_at(source)
            if record is None:
                continue
            parked = Record(record, 0, len(record))
            if parked.raw_topic == TIMER_TOPIC.encode():
                self.timers.mark(parked.queue_offset)
            elif parked.raw_topic == SCHEDULE_TOPIC.encode():
                delivered.setdefault(parked.queue_id, set()).add(parked.queue_offset)
        for queue_id, offsets in delivered.items():
            level = self._levels.get(queue_id)
            if level is not None:
                end = min(max(level.next, max(offsets) + 1), level.end)
                lost = [offset for offset in range(level.next, end) if offset not in offsets] if redeliver else []
                level.next = end if not lost or self._redelivered(level, lost) else lost[0]

    def _redelivered(self, level: _Level, lost: list[int]) -> bool:
        """Deliver parked messages at a start. False when the disk refuses: they and later ones are then delivered when due."""
        try:
            for offset in lost:
                unit = self._store.units(SCHEDULE_TOPIC, level.queue_id, offset, 1)[0]
                message = parked_message(self._store, SCHEDULE_TOPIC, level.queue_id, offset, unit[0])
                if message is not None:
                    self._stage_delivery(message, [])
            self._store.commit()
        except (SprocketError, OSError) as e:
            self._store.discard()
            log.warning("%d delayed messages of level %d have to wait: %s", len(lost), level.queue_id + 1, e)
            return False
        return True

    def start(self) -> None:
        """Begin to deliver, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._arm()

    @property
    def armed(self) -> bool:
        """Whether a timer is set for the next message."""
        return self._timer is not None

    def stop(self) -> None:
        """Deliver nothing more; may be called twice."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- parking ---

    def delay_s(self, level_number: int) -> float:
        """Return the delay of a level, in seconds."""
        return self._levels_ms[min(level_number, self.max_level) - 1] / 1000

    @property
    def max_level(self) -> int:
        """The last level."""
        return len(self._levels_ms)

    def stage(
        self,
        level_number: int,
        topic: str,
        queue_id: int,
        body: Buffer,
        properties: dict[str, str],
        *,
        copied_from: int | None = None,
        flag: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> tuple[int, int]:
        """Stage a message for delivery to ``topic`` after the delay of its level; a level above the last counts as the last.

        Returns its offset in the level's queue and its log offset. ``properties`` gain what delivery needs. Raises as
        ``MessageStore.stage_copy`` does, and LocalProtocolError for properties that cannot be written.
        """
        level = self._levels[min(level_number, self.max_level) - 1]
        properties[DELAY] = str(level.queue_id + 1)
        properties[REAL_TOPIC] = topic
        properties[REAL_QID] = str(queue_id)
        now = self.time.now_ms()
        assert level.delay_ms is not None
        placed = self._store.stage_copy(
            SCHEDULE_TOPIC,
            level.queue_id,
            body,
            encode_properties(properties),
            copied_from=copied_from,
            delay_ms=level.delay_ms,
            not_before_ms=now,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp_ms=born_timestamp_ms,
            born_host=born_host,
            reconsume_times=reconsume_times,
        )
        level.end = placed[0] + 1
        if level.due_ms is None:
            level.due_ms = now + level.delay_ms
            if self._timer is None or level.due_ms < self._armed_ms:
                self._arm()
        return placed

    def stage_timed(
        self,
        due_ms: int,
        topic: str,
        queue_id: int,
        body: Buffer,
        properties: dict[str, str],
        *,
        copied_from: int | None = None,
        flag: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
    ) -> tuple[int, int]:
        """Stage a message for delivery to ``topic`` at ``due_ms``, as ``stage`` does; not to be called while ``timers`` is full."""
        self._topics.create_internal(TIMER_TOPIC, 1)  # queues without a topic are taken for leftovers
        properties[TIMER_OUT_MS] = str(due_ms)
        properties[REAL_TOPIC] = topic
        properties[REAL_QID] = str(queue_id)
        placed = self._store.stage_copy(
            TIMER_TOPIC,
            0,
            body,
            encode_properties(properties),
            copied_from=copied_from,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp_ms=born_timestamp_ms,
            born_host=born_host,
            reconsume_times=reconsume_times,
        )
        self.timers.add(due_ms, placed[0], "" if TIMER_DEL_UNIQKEY in properties else topic)
        if self._timer is None or due_ms < self._armed_ms:
            self._arm()
        return placed

    def waits(self, parked: ReceivedMessage) -> bool:
        """Return whether a parked message has not been delivered yet."""
        level = self._levels.get(parked.queue_id)
        return level is not None and parked.queue_offset >= level.next

    # --- delivering ---

    def _span(self, level: _Level) -> tuple[int, int]:
        return self._store.min_offset(SCHEDULE_TOPIC, level.queue_id), self._store.max_offset(SCHEDULE_TOPIC, level.queue_id)

    def _look(self, level: _Level) -> None:
        """Determine when the next message of a level is due."""
        low, high = self._span(level)
        if level.next < low:
            log.error("%d delayed messages of level %d have left the log before their time", low - level.next, level.queue_id + 1)
            level.next = low
        if level.next < high:
            _, _, code = self._store.units(SCHEDULE_TOPIC, level.queue_id, level.next, 1)[0]
            level.due_ms = self._due(level, code)
        elif level.next < level.end and self._store.commitlog_visible_offset < self._store.commitlog_max_offset:
            level.due_ms = self.time.now_ms() + AGAIN_MS  # written, and not on the disk yet
        else:
            level.end = high
            level.due_ms = None

    def _due(self, level: _Level, code: int) -> int:
        # A time that is later than that of a message parked now was written under another clock or with other delays.
        now = self.time.now_ms()
        return now if level.delay_ms is not None and code > now + level.delay_ms else code

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loading:
            return
        times = [level.due_ms for level in self._levels.values() if level.due_ms is not None]
        if self.timers.next_ms is not None:
            times.append(max(self.timers.next_ms, self._timers_after_ms))
        due = min(times, default=None)
        if due is not None and self._loop is not None:
            self._armed_ms = due
            self._timer = self._loop.call_later(min(max(0, due - self.time.now_ms()) / 1000, MAX_WAIT_S), self.fire)

    def fire(self) -> None:
        """Deliver what is due, up to the limits of one turn, and set the timer for the rest. Failures are logged and tried again soon."""
        try:
            self._fire()
        except Exception:
            log.exception("delayed messages have to wait")
            self._store.discard()
            again = self.time.now_ms() + AGAIN_MS
            for level in self._levels.values():
                if level.due_ms is not None:
                    level.due_ms = max(level.due_ms, again)
            self._timers_after_ms = again
        self._arm()

    def _fire(self) -> None:
        self._settle()
        now = self.time.now_ms()
        due = [level for level in self._levels.values() if level.due_ms is not None and level.due_ms <= now]
        timed = self.timers.next_ms is not None and max(self.timers.next_ms, self._timers_after_ms) <= now
        if (due or timed) and not self._writable():
            for level in due:
                level.due_ms = now + AGAIN_MS
            self._timers_after_ms = now + AGAIN_MS
        elif due or timed:
            self._deliver(due, now, timed=timed)

    def _deliver(self, due: list[_Level], now: int, *, timed: bool) -> None:
        before = [(level, level.next) for level in due]
        arrivals: list[Arrival] = []
        count = size = 0
        share = max(1, MAX_AT_ONCE // (len(due) + timed))  # a busy level must not hold up the others
        max_bytes = MAX_BYTES_AT_ONCE // (len(due) + timed)
        timers = self.timers.take_due(now, share) if timed else []
        limits, cold = self._find_cold(due, timers, share)
        if cold and self._loads < MAX_LOADS:
            for entry in timers:
                self.timers.add(*entry)
            self._wait_for_disk(cold)
            return
        for read in cold:  # it has waited often enough
            read.release()
        self._loads = 0
        done: list[int] = []
        markers: list[tuple[str, str]] = []
        try:
            for level, limit in zip(due, limits, strict=True):
                taken = 0
                for message in self._due_messages(level, now, limit):
                    level.next += 1
                    count += 1
                    if message is not None:
                        self._stage_delivery(message, arrivals)
                        taken += message.store_size
                        if taken >= max_bytes:
                            break
                size += taken
            delayed = len(arrivals)
            for due_ms, offset, topic in timers:
                message = self._timed(due_ms, offset, topic)
                if message is None:
                    continue
                done.append(offset)
                properties = message.raw_properties
                marked = recalled_by(properties)
                if marked is not None:
                    markers.append(marked)
                elif not self.timers.is_recalled(*named(properties)):
                    self._stage_delivery(message, arrivals)
                    size += message.store_size
            self._store.commit()
        except Exception as e:
            self._store.discard()
            for level, offset in before:
                level.next = offset
                level.due_ms = now + AGAIN_MS
            for entry in timers:
                self.timers.add(*entry)
            self._timers_after_ms = now + AGAIN_MS
            if isinstance(e, StoreFailed):
                self.stop()
                self._failed(e)
            elif isinstance(e, RetriableError | FatalError | OSError):
                log.warning("delayed messages have to wait: %s", e)
            else:
                log.exception("delayed messages have to wait")
            return
        for offset in done:
            self.timers.mark(offset)
        for marked in markers:
            self.timers.forget_recall(marked)
        self.progress.changed |= bool(count or done)
        self.delivered += len(arrivals)
        for level in due:
            self._look(level)
        self._committed(arrivals, size, len(arrivals) - delayed)

    def _find_cold(self, due: list[_Level], timers: list[tuple[int, int, str]], count: int) -> tuple[list[int], list[ColdRead]]:
        """Return how many of the next ``count`` messages of each level to deliver, and what has to be read from the disk first."""
        levels = [self._store.find_cold(SCHEDULE_TOPIC, level.queue_id, level.next, count, count) for level in due]
        timed = [self._store.find_cold(TIMER_TOPIC, 0, offset, 1, 1) for _, offset, _ in timers]
        limits = [count if found is None else min(count, found.max_units) for found in levels]
        return limits, [found for found in levels + timed if found is not None and found.waits]

    def _wait_for_disk(self, cold: list[ColdRead]) -> None:
        self._loads += 1
        self._loading = True
        self._disk.load_all(cold, partial(self._loaded, cold))

    def _loaded(self, cold: list[ColdRead]) -> None:
        self._loading = False
        if self._loop is not None:
            self.fire()
        for read in cold:
            read.release()

    def _due_messages(self, level: _Level, now: int, count: int) -> Iterator[ReceivedMessage | None]:
        """Yield up to ``count`` messages of a level that are due, None for one that is damaged; the caller moves ``level.next``."""
        units = self._store.units(SCHEDULE_TOPIC, level.queue_id, level.next, count)
        for log_offset, _, code in units:
            if self._due(level, code) > now:
                return
            yield parked_message(self._store, SCHEDULE_TOPIC, level.queue_id, level.next, log_offset)

    def _timed(self, due_ms: int, offset: int, topic: str) -> ReceivedMessage | None:
        """Return a timed message that is due; None when it is missing or damaged."""
        low, high = self._store.min_offset(TIMER_TOPIC, 0), self._store.max_offset(TIMER_TOPIC, 0)
        if offset < low:
            log.error("timed message %d has left the log before its time", offset)
            self.timers.mark(offset)
        elif offset < high:
            message = parked_message(self._store, TIMER_TOPIC, 0, offset, self._store.units(TIMER_TOPIC, 0, offset, 1)[0][0])
            if message is None:
                self.timers.mark(offset)
            elif due_of(message.raw_properties) == due_ms and not self.timers.was_delivered(offset):
                return message
            # Otherwise its send failed, and another message has the offset.
        elif self._store.commitlog_visible_offset < self._store.commitlog_max_offset:
            self.timers.add(due_ms, offset, topic)  # written, and not on the disk yet
            self._timers_after_ms = self.time.now_ms() + AGAIN_MS
        return None

    def _stage_delivery(self, parked: ReceivedMessage, arrivals: list[Arrival]) -> None:
        """Stage a parked message for its own topic. One that cannot be stored stays parked and readable."""
        try:
            properties = parked.properties
        except RemoteProtocolError as e:
            log.warning("the delayed message at %d of the log is not delivered: %s", parked.commitlog_offset, e)
            return
        name, queue = properties.get(REAL_TOPIC, ""), properties.get(REAL_QID, "")
        problem = name_problem(name, MAX_INTERNAL_TOPIC_LENGTH)
        if problem or name in SEND_FORBIDDEN_TOPICS or not (queue.isascii() and queue.isdigit()):
            log.error("%r is not delivered: its real topic is %r, queue %r", parked, name, queue)
            return
        tag = tags_code(properties.get("TAGS"))
        born_host, store_host = parked.raw_hosts
        try:
            placed = self._store.stage_copy(
                name,
                int(queue[:10]),
                parked.stored_body,
                parked.raw_properties,
                copied_from=parked.commitlog_offset,
                tags_code=tag,
                flag=parked.flag,
                sys_flag=parked.sys_flag,
                born_timestamp_ms=parked.born_timestamp_ms,
                born_host=born_host,
                store_host=store_host,
                reconsume_times=parked.reconsume_times,
            )
        except (InvalidMessage, MessageTooLarge) as e:
            log.warning("%r is not delivered to %s: %s", parked, name, e)
            return
        if name.startswith(RETRY_PREFIX):
            self._retried(parked.commitlog_offset, placed[1])
        topic = self._topics.get(name)
        if topic is not None:
            arrivals.append((topic, int(queue), tag))
        elif name not in self._homeless:
            self._homeless.add(name)
            log.warning("topic %s was deleted, its delayed messages are stored for when it is created again", name)

    # --- progress ---

    def offsets(self) -> dict[int, tuple[int, int]]:
        """Return how many messages of each level were delivered and parked, for levels that have any."""
        spans = {level.queue_id + 1: (level.next, self._span(level)[1]) for level in self._levels.values()}
        return {number: span for number, span in sorted(spans.items()) if span[1]}
